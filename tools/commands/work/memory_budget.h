// SPDX-License-Identifier: Apache-2.0
// How much memory a command may use: what the user says, or what the machine and its cgroups have left. No torch here.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace fp8::commands {

/// "500MB", "2GiB", "1.5 GB", "300000000": bytes; units B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of
/// 1024), any case. Empty for anything else, for less than 1 byte and for 2^62 and more.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// Bytes that new allocations can get: MemAvailable, or what the tightest cgroup (v1 or v2) above this process leaves,
/// its reclaimable page cache not counted. root: where proc and sys are. 2^62 where nothing is known.
std::int64_t available_memory(const std::filesystem::path& root = "/");

/// What the program takes for itself while it runs a model: what is resident now, and what libraries touch at their
/// first use.
std::int64_t process_bytes();

/// Resident memory of this process, now and at its highest.
std::int64_t resident_bytes();
std::int64_t peak_resident_bytes();

/// Gives freed memory back to the system: what was a layer must not stand beside the next.
void trim_heap();

/// From now on large blocks, once freed, go back by themselves: glibc otherwise keeps blocks of up to 32 MiB as soon as
/// it has seen one freed, and a prompt's activations of all sizes leave holes among each other (a tenth of the resident
/// memory after 4096 tokens). Each large block then costs its page faults again, which generating can't notice.
void return_large_blocks();

}  // namespace fp8::commands
