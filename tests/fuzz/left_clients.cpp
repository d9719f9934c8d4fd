// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/left_clients.hpp"

#include "tests/fuzz/fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto clients = rnbd::clients_of(fuzz::Input{data, size}.rest());
  if (!clients) {
    fuzz::require(!clients.error().empty(), "there is a reason");
    return 0;
  }
  std::size_t bytes = 0;
  for (const auto& client : *clients) {
    fuzz::require(client.socket == -1 && client.disk.has_value(), "a client has a disk");
    bytes += client.disk->name.size() + client.unread.size();
  }
  fuzz::require(bytes <= size, "nothing is invented");
  const std::string record = rnbd::record_of(*clients);
  const auto again = rnbd::clients_of(std::as_bytes(std::span{record}));
  fuzz::require(again && rnbd::record_of(*again) == record, "clients survive encoding");
  return 0;
}
