# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the device: it draws from the CPU's generator, so its state is that one's."""

import typing

import torch

from fp8._devices import Device, device_count
from fp8._devices import index_of as _check

__all__ = ["get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all", "manual_seed", "manual_seed_all", "seed", "seed_all",
           "initial_seed", "set_rng_ctx", "unset_rng_ctx"]


def get_rng_state(device: Device = "hpu") -> torch.Tensor:
    _check(device)
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "hpu") -> None:
    _check(device)
    torch.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


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


def set_rng_ctx(name: str) -> None:
    """What DTensor calls around its own random numbers: the state is the one that it is."""
    del name


def unset_rng_ctx(name: str) -> None:
    del name
