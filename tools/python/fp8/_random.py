# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the device: it draws from the CPU's generator, so its state is that one's."""

import typing

import torch

Device = typing.Union[torch.device, str, int, None]


def _check(device: Device) -> None:
    from fp8 import hpu
    hpu._index(device)


def get_rng_state(device: Device = "hpu") -> torch.Tensor:
    _check(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "hpu") -> None:
    _check(device)
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: typing.Sequence[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """torch.manual_seed() comes here, too: the generator is the CPU's, which it has seeded already."""
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    manual_seed(seed)


def seed() -> int:
    return torch.default_generator.seed()


def seed_all() -> int:
    return seed()


def initial_seed() -> int:
    return torch.default_generator.initial_seed()
