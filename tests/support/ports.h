// SPDX-License-Identifier: Apache-2.0
// Ports of this machine: a free one, who listens at one, and whether it can be connected to.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace fp8::test {

/// A socket on a free port of all networks.
struct Listener {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  int port = 0;
  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof(address);
    if (bind(socket, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(socket, 1) != 0) return;
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0) port = ntohs(address.sin_port);
  }
  ~Listener() { close(socket); }
};

/// Nobody listens there now; "0" where there is none.
inline std::string free_port() { return std::to_string(Listener().port); }

/// The addresses, as the kernel writes them.
inline std::set<std::string> listening_at(int port) {
  std::set<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line, number, local, remote, state;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      words >> number >> local >> remote >> state;
      const std::size_t colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port)
        found.insert(local.substr(0, colon));
    }
  }
  return found;
}

/// By IPv4.
inline bool connects(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  const int made = ::socket(AF_INET, SOCK_STREAM, 0);
  const bool done = connect(made, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(made);
  return done;
}

}  // namespace fp8::test
