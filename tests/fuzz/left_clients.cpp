// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/estate.hpp"
#include "tests/fuzz/fuzz.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto estate = rnbd::estate_in(fuzz::Input{data, size}.rest());
  if (!estate) {
    fuzz::require(!estate.error().empty(), "there is a reason");
    return 0;
  }
  std::size_t bytes = 0;
  for (const auto& listener : estate->listeners) {
    fuzz::require(listener.socket == -1, "a record has no sockets");
    bytes += listener.address.size();
  }
  for (const auto& client : estate->clients) {
    fuzz::require(client.socket == -1 && client.disk.has_value(), "a client has a disk");
    bytes += client.disk->name.size() + client.unread.size();
  }
  fuzz::require(bytes <= size, "nothing is invented");
  const std::string record = rnbd::record_of(*estate);
  const auto again = rnbd::estate_in(std::as_bytes(std::span{record}));
  fuzz::require(again && rnbd::record_of(*again) == record, "all survives encoding");
  return 0;
}
