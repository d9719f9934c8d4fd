// SPDX-License-Identifier: BSD-3-Clause
// libnbd's handle, and how to get a connected one.
#pragma once

#include <libnbd.h>

#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "rdma/client.hpp"

namespace rnbd {

using rtrs::Failure;

struct CloseNbdHandle {
  void operator()(nbd_handle* handle) const { nbd_close(handle); }
};
using NbdHandle = std::unique_ptr<nbd_handle, CloseNbdHandle>;

/// Connects and haggles until the export can be used. Blocks for up to 10 s, and for as long as
/// looking up a name takes.
///
/// Errors: a sentence without the URI.
tl::expected<NbdHandle, Failure> connect_nbd(const std::string& uri);

/// The server has sent nothing that was not read yet, not even its farewell.
bool is_silent(nbd_handle* h);

}  // namespace rnbd
