// SPDX-License-Identifier: Apache-2.0
// numpy's .npz with one Python object in it: what numpy.savez(path, value) writes for a dict, and what
// numpy.load(path, allow_pickle=True)["arr_0"].item() gives back. The object's pickle is read by pickle.h's restricted
// reader: no code of the file ever runs. No torch here.
//
//   zip, member "arr_0.npy":  "\x93NUMPY" major minor | header length | {'descr': '|O', 'fortran_order': False,
//   'shape': (), }
//                             | pickle of the 0-dim object array
#pragma once

#include "fp8/runtime/io/pickle/pickle.h"

namespace fp8::io {

/// Writes atomically. The member is stored, not compressed, and dated 1980-01-01, so that equal values give equal
/// bytes.
void write_npz(const std::filesystem::path& path, const PyValue& value);

/// The bytes that write_npz() writes; `path` stands in messages.
std::string npz_bytes(const std::filesystem::path& path, const PyValue& value);

/// Reads a file of at most 512 MiB, whose member may be compressed (numpy.savez_compressed) and is at most 512 MiB too.
/// Throws io::Error.
PyValue read_npz(const std::filesystem::path& path);

/// Reads a file's bytes; `name` stands in messages.
PyValue parse_npz(std::string_view bytes, const std::string& name);

}  // namespace fp8::io
