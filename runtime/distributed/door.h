// SPDX-License-Identifier: Apache-2.0
// Where rank 0 listens for the others. c10d's own socket is open to all networks of the machine, for as long as it
// runs, and its server stores whatever anybody sends. This one is open
//
//   to        this machine, where the host is its loopback; else the network of the host's address, where the name has
//             only one, of this machine; else all networks: as the others find it, the name may have another address
//   until     all ranks have connected
//   for       as many bytes as ranks send
#pragma once
#include <cstdint>
#include <mutex>
#include <string>

namespace fp8::runtime::distributed {

/// It is an address of the loopback interface, or a name for it with "localhost" in it. A machine's own name is none,
/// whatever this machine takes it for (127.0.1.1): others find it elsewhere.
bool is_loopback(const std::string& host);

class Door {
 public:
  /// Listens. Throws c10::Error, "... address already in use".
  Door(const std::string& host, std::uint16_t port);

  int socket() const { return socket_; }  ///< c10d's server takes it over, and closes it
  /// Nobody can connect any more; connections stay.
  void close();
  /// The server is about to end: its socket is not ours to close.
  void forget();
  /// Called every half a second. Whoever has sent more than `size` ranks send together is cut off; whether there was
  /// somebody.
  bool cut_off_floods(int size);

 private:
  std::mutex mutex_;
  int socket_;
  std::uint16_t port_;
  std::int64_t calls_ = 0;
};

}  // namespace fp8::runtime::distributed
