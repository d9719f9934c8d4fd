// SPDX-License-Identifier: BSD-3-Clause
// The ways to all members of a mirror, and the names of the members.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/mirror/member_link.hpp"
#include "bridge/client/mirror/mirror_config.hpp"
#include "bridge/client/mirror/mirror_status.hpp"

namespace rnbd::mirror {

/// Tells people and members the address of each member, and people why one is away.
///
/// Threads: any.
class MemberLinks {
 public:
  using OnOpen = std::function<void(unsigned member, std::shared_ptr<OpenMember>)>;

  /// `config`: of the mirror. `on_open` is called from the thread of a link.
  MemberLinks(const ClientConfig& config, const rtrs::Log& log, const OnOpen& on_open);

  MemberLink& operator[](unsigned member) { return *links_[member]; }
  const MemberLink& operator[](unsigned member) const { return *links_[member]; }
  std::size_t size() const { return links_.size(); }
  /// `host:port`
  std::string server(unsigned member) const { return links_[member]->server(); }
  /// Errors: ENOENT, with the names of all.
  tl::expected<unsigned, rtrs::Failure> named(const std::string& server) const;
  /// Adds what the links know: the servers, their sessions, their troubles, and the mirror's URI.
  void complete(MirrorStatus& status) const;
  /// The servers besides this one that another client writes to, or may write to, as they have not
  /// answered yet; "": none.
  std::string used_beside(unsigned member) const;

  /// A member's device, as another member finds it.
  std::string uri_of(unsigned member) const;
  /// The mirror, with the servers that it has now, and with all else that a URI can tell.
  std::string uri() const;

 private:
  MemberLink::Place place_of(unsigned member);
  MemberRole role_of(bool is_vote) const;

  const std::string scheme_;
  const std::string device_;
  const MirrorConfig mirror_;
  const std::size_t disks_;
  ServerTable table_;
  std::vector<std::unique_ptr<MemberLink>> links_;
};

}  // namespace rnbd::mirror
