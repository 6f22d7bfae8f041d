// SPDX-License-Identifier: Apache-2.0
// Memory of the device that comes later: of the result of a call that has not run yet (lazy/lazy_mode.h).
//
//   hpu StorageImpl --DataPtr--> PendingMemory { made, failure }     no address: whoever asks for it is told so
//   hpu StorageImpl --DataPtr--> Block                               after settle()
#pragma once
#include <c10/core/Storage.h>

#include <string>

namespace fp8::runtime {

struct PendingMemory {
  c10::Storage made = {};    ///< once the call has run; only what runs the call, and settle(), may look
  std::string failure = {};  ///< why it will never be made
};

/// Of so many bytes, on hpu:device.
c10::Storage pending_storage(std::size_t bytes, c10::DeviceIndex device);

/// Null: it has its memory, or is none of the device's.
PendingMemory* pending_of(const c10::StorageImpl* storage);

/// Gives the storage what was made. Nobody else may use it meanwhile.
void settle(c10::StorageImpl& storage);

}  // namespace fp8::runtime
