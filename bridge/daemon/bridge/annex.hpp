// SPDX-License-Identifier: BSD-3-Clause
// The interface for faces of rnbd-bridge beside NBD. Each kind has a folder of its own, and a line
// in annexes.cpp.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "bridge/metrics/meter.hpp"
#include "bridge/nbd/exports.hpp"
#include "rdma/log.hpp"
#include "rdma/one_call.hpp"

namespace rnbd {

/// A place where clients that do not speak NBD find the device.
///
/// Threads: one at a time.
class BridgeFace {
 public:
  virtual ~BridgeFace() = default;
  /// Lets clients in.
  virtual void open_door() = 0;
  /// Ends all clients after their requests, which are given up at that time.
  virtual void stop(std::chrono::steady_clock::time_point until) = 0;
};

/// The things that a face finds in its program.
struct FaceSurroundings {
  nbd::Exports& exports;
  MeterBook& meters;
  rtrs::Log log;
  rtrs::MakeOneCall make_call;
};

/// The contribution of an annex: addresses of --listen that begin with its scheme. Such a face has
/// the lanes of the session for itself.
struct BridgeAnnex {
  std::string_view scheme;  ///< with its colon
  const char* help;         ///< a sentence for the option
  /// The path of the socket behind the scheme.
  ///
  /// Errors: a sentence.
  tl::expected<std::string, std::string> (*path_of)(std::string_view address);
  /// Listens at once.
  ///
  /// Errors: a sentence.
  tl::expected<std::unique_ptr<BridgeFace>, std::string> (*open)(
      const std::string& path, const FaceSurroundings& surroundings);
};

std::span<const BridgeAnnex* const> bridge_annexes();
/// Null: the address is one of NBD.
const BridgeAnnex* annex_of_address(std::string_view address);

}  // namespace rnbd
