# SPDX-License-Identifier: Apache-2.0
"""torch.compile on hpu: backend "fp8" traces and runs the runtime's operators; inductor, which makes code for other
devices, is refused in a sentence."""

import typing

import torch


def backend(module: torch.fx.GraphModule, inputs: list[typing.Any], **kwargs: typing.Any) -> typing.Callable[..., typing.Any]:
    """What torch.compile(model, backend="fp8") calls (entry point "torch_dynamo_backends"): AOTAutograd's eager graphs."""
    from torch._dynamo.backends.debugging import aot_eager
    return typing.cast(typing.Callable[..., typing.Any], aot_eager(module, inputs, **kwargs))


def refuse_inductor() -> None:
    """Graphs with inputs on hpu never come to inductor, which would end in KeyError 'hpu'."""
    wrapper = torch._TorchCompileInductorWrapper
    plain = wrapper.__call__

    def call(self: typing.Any, model_: typing.Any, inputs_: typing.Any) -> typing.Any:
        if any(isinstance(t, torch.Tensor) and t.device.type == "hpu" for t in inputs_):
            raise RuntimeError("torch.compile: found backend 'inductor' for tensors on hpu, allowed: 'fp8', 'eager', 'aot_eager'")
        return plain(self, model_, inputs_)

    wrapper.__call__ = call
