// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/server/volatile_epoch.hpp"

#include <fstream>
#include <random>
#include <string>

namespace rtrs {

/// FNV-1a.
std::uint64_t volatile_epoch_of(std::string_view boot_id) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : boot_id) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return hash;
}

std::uint64_t volatile_epoch_of_this_machine(std::uint64_t losses) {
  std::ifstream file{"/proc/sys/kernel/random/boot_id"};
  std::string id;
  if (file && std::getline(file, id)) {
    return volatile_epoch_of(losses == 0 ? id : id + '+' + std::to_string(losses));
  }
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace rtrs
