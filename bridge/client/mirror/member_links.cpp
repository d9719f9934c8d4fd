// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/member_links.hpp"

#include <cerrno>
#include <string_view>
#include <utility>

#include "bridge/protocol/uuid.hpp"
#include "rdma/path_list.hpp"

namespace rnbd::mirror {
namespace {

ClientConfig config_of_member(const ClientConfig& whole, std::size_t member) {
  ClientConfig config = whole;
  const bool is_vote = member == whole.servers.size();
  if (is_vote)
    config.paths = {*settings_of(whole).vote};
  else
    config.paths = whole.servers[member];
  config.servers.clear();
  config.several.clear();
  // The last one is the steward's. The others would keep their share of the requests idle.
  config.lanes = whole.event_loops && !is_vote ? lanes_of(whole) + 1 : 1;
  config.access = is_vote ? wire::AccessMode::read_only : wire::AccessMode::read_write;
  if (is_vote) config.device = wire::kVotesName;
  config.annex_features = wire::kMirrorFeatures;
  config.control.clear();
  return config;
}

/// Characters that mean something in a URI, or are reserved in this part of it, are hidden.
std::string percent_encoded(const std::string& text, std::string_view reserved = "?") {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte < 0x7F && c != '%' && c != '#' && reserved.find(c) == reserved.npos) {
      encoded += c;
    } else {
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

/// Paths of a member, as in `rnbd-mirror+tcp://a+rdma:10.0.0.1@a2/disk0`.
std::string paths_in_uri(const std::vector<rtrs::PathAddress>& paths, rtrs::TransportKind usual) {
  std::string text;
  for (const rtrs::PathAddress& path : paths) {
    const std::string full = rtrs::to_string(path);
    const std::size_t skipped = path.transport == usual ? full.find(':') + 1 : 0;
    text += (text.empty() ? "" : "+") + percent_encoded(full.substr(skipped));  // zones have a %
  }
  return text;
}

/// Keys and how they are used, as options of a URI.
std::string keys_in_uri(const ClientConfig& config) {
  std::string text;
  const auto name = [&](const char* key, const std::string& value) {
    if (!value.empty()) text += std::string{"&"} + key + "=" + percent_encoded(value, "&");
  };
  name("tls-psk-file", config.tls_keys.psk);
  name("tls-certificates", config.tls_keys.certificates);
  if (!config.tls_keys.verify_peer) name("tls-verify", "false");
  if (config.auth_keys) name("auth-psk-file", config.auth_keys->psk);
  return text;
}

}  // namespace

MemberLinks::MemberLinks(const ClientConfig& config, const rtrs::Log& log, const OnOpen& on_open)
    : scheme_{config.server().substr(0, config.server().find("://"))},
      device_{config.device},
      mirror_{settings_of(config)},
      disks_{config.servers.size()},
      table_{config.servers.size(), servers_of(config)} {
  for (unsigned i = 0; i < servers_of(config); ++i) {
    links_.push_back(std::make_unique<MemberLink>(
        config_of_member(config, i), log,
        [on_open, i](std::shared_ptr<OpenMember> open) { on_open(i, std::move(open)); },
        place_of(i), role_of(i == disks_)));
  }
}

/// Views have the vote, so the servers of the disks must know of it, too.
MemberRole MemberLinks::role_of(bool is_vote) const {
  MemberRole role;
  if (mirror_.vote) role.features |= wire::kFeatureMirrorVotes;
  if (is_vote) role.kind = wire::MemberKind::vote;
  return role;
}

tl::expected<unsigned, rtrs::Failure> MemberLinks::named(const std::string& wanted) const {
  std::string all;
  for (unsigned i = 0; i < links_.size(); ++i) {
    const std::string name = server(i);
    if (name == wanted) return i;
    all += (all.empty() ? "" : ", ") + name;
  }
  return tl::unexpected(rtrs::Failure{ENOENT, "no member is called that; write one of: " + all});
}

void MemberLinks::complete(MirrorStatus& status) const {
  status.uri = uri();
  status.members.resize(links_.size());
  for (unsigned i = 0; i < links_.size(); ++i) {
    MemberStatus& member = status.members[i];
    member.server = server(i);
    member.votes = i == disks_;
    member.trouble = links_[i]->trouble();
    member.session = links_[i]->status();
  }
}

MemberLink::Place MemberLinks::place_of(unsigned member) {
  return {.enter =
              [this, member](rtrs::ServerId id, ServerTable::Stage stage) {
                const auto twin = table_.enter(member, id, stage);
                return twin ? server(*twin) : std::string{};
              },
          .leave = [this, member] { table_.leave(member); }};
}

std::string MemberLinks::used_beside(unsigned member) const {
  std::string used;
  for (unsigned i = 0; i < disks_; ++i)
    if (i != member && links_[i]->is_used()) used += (used.empty() ? "" : " and ") + server(i);
  return used;
}

std::string MemberLinks::uri_of(unsigned member) const {
  const auto config = links_[member]->config();
  return config->server() + "/" + percent_encoded(config->device);
}

std::string MemberLinks::uri() const {
  const auto config = links_.front()->config();
  const bool tcp = scheme_.ends_with("+tcp");
  const auto usual = tcp ? rtrs::TransportKind::tcp : rtrs::TransportKind::rdma;
  const rtrs::TlsKeys& keys = config->auth_keys ? *config->auth_keys : config->tls_keys;
  std::string text = scheme_ + "://";
  if (!keys.username.empty()) text += percent_encoded(keys.username, "/@?") + "@";
  for (std::size_t i = 0; i < disks_; ++i)
    text += (i == 0 ? "" : ",") + paths_in_uri(links_[i]->config()->paths, usual);
  text += "/" + percent_encoded(device_) + "?group=" + uuid_text(mirror_.group);
  if (mirror_.vote) text += "&vote=" + paths_in_uri(links_.back()->config()->paths, usual);
  if (mirror_.near) text += "&read=near";
  if (mirror_.degraded == Degraded::quorum) text += "&degraded=quorum";
  if (mirror_.resync_rate != 0) text += "&resync-rate=" + std::to_string(mirror_.resync_rate >> 20);
  return text + keys_in_uri(*config);
}

}  // namespace rnbd::mirror
