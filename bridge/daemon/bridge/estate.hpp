// SPDX-License-Identifier: BSD-3-Clause
// The things that a bridge leaves to its successor, and the record of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/nbd/connection.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

struct LeftListener {
  std::string address;  ///< as nbd::text_of() says; "": the service manager's
  int socket = -1;
};

/// Sockets, with all that the successor must know of them. It does not own them.
struct Estate {
  std::vector<LeftListener> listeners;
  std::vector<nbd::Released> clients;
};

/// The version of records that this program writes and reads.
std::uint16_t estate_version();
/// The record for another process, without the sockets.
std::string record_of(const Estate& estate);
/// The contents of a record; the sockets are -1. Parts that this version does not know are passed
/// over, unless they must be understood.
///
/// Errors: a sentence, for a record that is damaged or of another version.
tl::expected<Estate, std::string> estate_in(std::span<const std::byte> record);
/// The sockets, in the order of the record.
std::vector<int*> descriptors_of(Estate& estate);

/// A file in memory with the record; none: there is no room.
rtrs::OwnedFd file_of(const std::string& record);
/// All of such a file.
std::vector<std::byte> bytes_of(int file);

}  // namespace rnbd
