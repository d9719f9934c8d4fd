// SPDX-License-Identifier: BSD-3-Clause
// Asks a server for its lists: its exports, its addresses, other servers, writers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/protocol/directory.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// Asks a server about its exports. It opens nothing, and knows nothing of open devices. A server
/// without the extension is not asked.
///
/// Threads: any; each question waits for its answer.
/// Source:  docs/protocol.md, RNBD extension.
class ServerDirectory {
 public:
  /// `client` must outlive it. `limits`: of its session at the time of the questions.
  ServerDirectory(rtrs::Client& client, const rtrs::SessionLimits& limits)
      : client_{client}, limits_{limits} {}

  /// The names of the server's exports.
  ///
  /// Errors: EOPNOTSUPP (a server without the extension), EOVERFLOW (more than 100,000 names),
  ///         EINTR, EPROTO, EIO.
  tl::expected<std::vector<wire::ExportName>, rtrs::Failure> exports(
      const rtrs::Interrupt& interrupt) const;
  /// The server's exports with size, rights and state, or other entries of its directory; those
  /// that this version does not understand are left out.
  ///
  /// Errors: as exports(), EINVAL (a server of an older version).
  tl::expected<std::vector<wire::DirectoryEntry>, rtrs::Failure> entries(
      const rtrs::Interrupt& interrupt, std::uint32_t kinds = wire::kDirectoryExports) const;
  /// The addresses that the server advertises, at most kMaxAdvertised. Empty if it advertises none,
  /// or does not know the question.
  ///
  /// Errors: those of the session.
  tl::expected<std::vector<rtrs::PathAddress>, rtrs::Failure> advertised(
      const rtrs::Interrupt& interrupt) const;
  /// The URI of the device at another server, according to this one; "": unknown.
  std::string referral(const std::string& device, const rtrs::Interrupt& interrupt) const;
  /// The writer of an export, in the server's words: "'vm1' (10.0.0.5:40312) writes to it"; or why
  /// this client may not open it. "": neither, or no answer.
  wire::WhoAnswer who(const std::string& device, const rtrs::Interrupt& interrupt) const;

 private:
  bool is_there() const;
  std::vector<std::byte> room_for_page() const;

  rtrs::Client& client_;
  const rtrs::SessionLimits limits_;
};

}  // namespace rnbd
