# SPDX-License-Identifier: Apache-2.0
"""Pickles, zips, files of tensors: inputs, and what the reference makes of them."""

import io
import json
import math
import pickle
import struct
import zipfile

from common import changed, half_changed, text, written


class Restricted(pickle.Unpickler):
    ALLOWED = {
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.numeric", "_frombuffer"),
        ("__builtin__", "bytes"),
        ("builtins", "bytes"),
    }

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def some_value(rng, depth=0):
    import numpy

    way = rng.randrange(12 if depth < 3 else 8)
    if way < 3:
        shape = tuple(rng.randint(0, 3) for _ in range(rng.randint(0, 3)))
        array = numpy.array(
            rng.choice((1.5, 1e-40, -2, 3e38, float("nan"))) * numpy.ones(shape),
            dtype=rng.choice(("f4", "f4", "f8", "f2", "i4", "i8")) if depth else "f4",
        )
        return array.T if rng.random() < 0.2 else array
    if way < 8:
        return rng.choice(
            (
                None,
                True,
                False,
                rng.randint(-5, 300),
                rng.randint(-(2**63), 2**63 - 1),
                rng.uniform(-1, 1),
                "text",
                "ä" * rng.randint(0, 3),
                numpy.float32(0.1),
                numpy.float64(0.1),
                numpy.int64(7),
                float("inf"),
                2**70,
            )
        )
    items = [some_value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if way == 8:
        return tuple(items)
    if way == 9:
        return items
    return {rng.choice(("a", "inputs", "weight", "x" * 40, n)): item for n, item in enumerate(items)}


def whole(value):
    """What stands in the wrapper that numpy puts around one object."""
    import numpy

    if isinstance(value, numpy.ndarray) and value.dtype == object and value.ndim == 0:
        return value.item()
    return value


def pickle_of(rng):
    import numpy

    value = some_value(rng)
    if rng.random() < 0.5:
        wrapper = numpy.empty((), dtype=object)
        wrapper[()] = value
        value = wrapper
    return pickle.dumps(value, protocol=rng.randint(2, 5))


def pickle_cases(rng):
    yield half_changed(rng, pickle_of(rng))


def python_pickle(case):
    file = io.BytesIO(case)
    value = Restricted(file).load()
    return written(whole(value))


def npz_of(rng):
    import numpy

    file = io.BytesIO()
    save = rng.choice((numpy.savez, numpy.savez, numpy.savez_compressed))
    wrapper = numpy.empty((), dtype=object)
    wrapper[()] = some_value(rng)
    save(file, wrapper)
    return file.getvalue()


def npz_cases(rng):
    yield half_changed(rng, npz_of(rng))


def numpy_load(case):
    import numpy

    with zipfile.ZipFile(io.BytesIO(case)) as archive:
        member = io.BytesIO(archive.read("arr_0.npy"))
    major = numpy.lib.format.read_magic(member)
    shape, _, dtype = (numpy.lib.format.read_array_header_1_0 if major == (1, 0) else numpy.lib.format.read_array_header_2_0)(member)
    if not dtype.hasobject:
        raise ValueError("no objects")
    array = Restricted(member).load()
    array.shape = shape
    return written(whole(array))


def zip_of(rng, stored):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        names = ["arr_0.npy", "a/data.pkl", "b", "ä", "x" * 30]
        for name in rng.sample(names, rng.randint(1, len(names))):
            way = zipfile.ZIP_STORED if stored or rng.random() < 0.5 else zipfile.ZIP_DEFLATED
            data = rng.randbytes(rng.randint(0, 9)) * rng.randint(0, 5)
            if rng.random() < 0.2:  # sizes in a zip64 field
                with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                    member.write(data)
            else:
                archive.writestr(name, data, way)
        if rng.random() < 0.2:
            archive.comment = b"note"
    return file.getvalue()


def zip_cases(rng):
    yield half_changed(rng, zip_of(rng, False))


def zip64_cases(rng):
    yield half_changed(rng, zip_of(rng, True))


def python_zip(case):
    with zipfile.ZipFile(io.BytesIO(case)) as archive:
        return written_bytes(archive.read("arr_0.npy"))


def python_zip_all(case):
    with zipfile.ZipFile(io.BytesIO(case)) as archive:
        members = {name.encode(): archive.read(name) for name in archive.namelist()}
        return b"".join(written_bytes(name) + written_bytes(members[name]) for name in sorted(members))


def written_bytes(data):
    return b"s%d:%s" % (len(data), data)


# Files of tensors

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4, "F64": 8, "U16": 2}


def safetensors_of(rng):
    header, data = {}, b""
    for number in range(rng.randint(0, 4)):
        dtype, shape = rng.choice(list(SIZES)), [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
        size = SIZES[dtype] * math.prod(shape)
        header[rng.choice(("a", "model.layers.0.weight", "ä", "")) + str(number)] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + size],
        }
        data += rng.randbytes(size)
    if rng.random() < 0.3:
        header["__metadata__"] = {"format": "pt", "ä": "b"}
    return json.dumps(header, ensure_ascii=rng.random() < 0.5), data


def safetensors_cases(rng):
    header, data = safetensors_of(rng)
    header = half_changed(rng, header.encode(), b'[]{}:,"0123456789 -eF' if rng.random() < 0.8 else None)
    header += b" " * rng.choice((0, -len(header) % 8, 3))
    file = struct.pack("<Q", len(header)) + header + data
    yield changed(rng, file) if rng.random() < 0.15 else file


def written_tensors(tensors):
    """(name, dtype, shape, bytes) of each."""
    return b"".join(
        text(name) + dtype.encode() + b"(" + b"".join(b"%d," % size for size in shape) + b")" + written_bytes(bytes(data))
        for name, dtype, shape, data in sorted(tensors, key=lambda one: one[0].encode())
    )


def safetensors_reference(case):
    import safetensors

    return written_tensors((name, one["dtype"], one["shape"], one["data"]) for name, one in safetensors.deserialize(case))


TORCH_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "uint8": "U8",
    "bool": "BOOL",
    "int32": "I32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "int16": "I16",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
}


def torch_cases(rng):
    """Ten of a file: torch.save takes long. Its pickle is changed and packed again, or the whole file is."""
    import torch

    tensors = {}
    for number in range(rng.randint(0, 3)):
        one = torch.arange(24).to(getattr(torch, rng.choice(("float32", "bfloat16", "int64", "uint8", "float8_e4m3fn", "bool"))))
        one = rng.choice(
            (
                lambda t: t,
                lambda t: t.view(4, 6),
                lambda t: t.view(2, 3, 4).transpose(0, 2),
                lambda t: t[5:9],
                lambda t: t[:0],
                lambda t: t[3],
                lambda t: t.view(4, 6)[:, 1:3],
            )
        )(one)
        tensors[rng.choice(("a", "model.weight", "ä")) + str(number)] = (
            torch.nn.Parameter(one) if one.is_floating_point() and rng.random() < 0.2 else one
        )
    tensors = rng.choice((tensors, tensors, {"state_dict": tensors, "epoch": 3}, {"model": tensors, "args": {"lr": 0.1, "names": ["a", (1, None)]}}))
    file = io.BytesIO()
    torch.save(tensors, file)
    for _ in range(10):
        yield torch_case(rng, file.getvalue())


def torch_case(rng, data):
    if rng.random() < 0.3:
        return changed(rng, data)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(out, "w") as copy:
        for name in archive.namelist():
            member = archive.read(name)
            copy.writestr(name, half_changed(rng, member) if name.endswith("data.pkl") else member)
    return out.getvalue()


def torch_reference(case):
    import torch

    value = torch.load(io.BytesIO(case), weights_only=True, map_location="cpu")
    for key in ("state_dict", "model", "model_state_dict", "module"):
        if isinstance(value.get(key), dict):
            value = value[key]
            break
    found = []
    for name, one in value.items():
        if isinstance(one, torch.Tensor):
            plain = one.detach().contiguous()
            data = plain.view(torch.uint8).numpy().tobytes() if plain.dim() else plain.reshape(1).view(torch.uint8).numpy().tobytes()
            found.append((name, TORCH_NAMES[str(plain.dtype)[6:]], plain.shape, data))
    return written_tensors(found)
