// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/mirror_annex.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bridge/client/mirror/mirror_commands.hpp"
#include "bridge/client/mirror/mirror_config.hpp"
#include "bridge/client/mirror/mirror_device.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd::mirror {
namespace {

// ---- Options ------------------------------------------------------------------------------------

using Value = const std::string&;

std::string set_rate(MirrorConfig& config, Value value) {
  constexpr unsigned kMost = 1U << 20;
  std::uint64_t mib = 0;
  if (const std::string wrong = set_number(mib, value, 1, kMost); !wrong.empty())
    return wrong + "; it is MiB per second";
  config.resync_rate = mib << 20;
  return "";
}

std::string set_group(MirrorConfig& config, Value value) {
  const auto group = parse_uuid(value);
  if (!group) return in_quotes(value) + " is not a UUID";
  config.group = *group;
  return "";
}

constexpr OptionWord<bool> kReads[] = {{"near", true}, {"round-robin", false}};
constexpr OptionWord<Degraded> kDegraded[] = {{"allow", Degraded::allow},
                                              {"quorum", Degraded::quorum}};
constexpr OptionWord<bool> kCreations[] = {{"empty", false}, {"copy", true}};

/// The server of a vote needs no port, as that of a disk.
std::string set_vote(ClientDraft& draft, Value value) {
  const auto path = parse_path(value, draft.config.servers.front().front().transport);
  if (!path) return path.error();
  draft.config.part<MirrorConfig>().vote = *path;
  return "";
}

/// The URI has named its servers already.
template <class Set>
std::string of_mirror(ClientDraft& draft, const Set& set) {
  if (draft.config.servers.empty())
    return "only a mirror has that; write rnbd-mirror+tcp://HOST,HOST/DEVICE, or leave it out";
  return set(draft.config.part<MirrorConfig>());
}

constexpr ClientOption kOptions[] = {
    {{"read", "near|round-robin", "near", "Which member reads go to.",
      [](ClientDraft& d, Value v) {
        return of_mirror(d, [&](MirrorConfig& c) { return set_word(c.near, v, kReads); });
      }},
     OptionPlace::uri},
    {{"degraded", "allow|quorum", "quorum", "Whether one of two members may go on alone.",
      [](ClientDraft& d, Value v) {
        return of_mirror(d, [&](MirrorConfig& c) { return set_word(c.degraded, v, kDegraded); });
      }},
     OptionPlace::uri},
    {{"create", "empty|copy", "copy", "copy: data on disks that are new may be replaced.",
      [](ClientDraft& d, Value v) {
        return of_mirror(d,
                         [&](MirrorConfig& c) { return set_word(c.create_copy, v, kCreations); });
      }},
     OptionPlace::uri},
    {{"resync-rate", "MIB", "50", "Copies take so many MiB per second at most.",
      [](ClientDraft& d, Value v) {
        return of_mirror(d, [&](MirrorConfig& c) { return set_rate(c, v); });
      }},
     OptionPlace::uri},
    {{"vote", "HOST[:PORT]", "w:1234",
      "A server without a copy that votes when others are gone (rnbd-server --votes on).",
      [](ClientDraft& d, Value v) {
        return of_mirror(d, [&](MirrorConfig&) { return set_vote(d, v); });
      }},
     OptionPlace::uri},
    {{"group", "UUID", "01234567-89ab-cdef-0123-456789abcdef", "The identity of the group.",
      [](ClientDraft& d, Value v) {
        return of_mirror(d, [&](MirrorConfig& c) { return set_group(c, v); });
      }},
     OptionPlace::uri},
};

// ---- All options together -----------------------------------------------------------------------

/// FNV-1a, of 128 bits in two halves that start differently.
wire::Uuid digest_of(const std::string& text) {
  wire::Uuid uuid{};
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t hash = 0xcbf29ce484222325 + half;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    for (std::size_t i = 0; i < 8; ++i)
      uuid[half * 8 + i] = static_cast<std::uint8_t>(hash >> (8 * i));
  }
  return uuid;
}

/// The client keeps no state, so the list of servers identifies the group. Its servers refuse a
/// changed list, because a copy of other data must not become a member.
wire::Uuid group_of(const ClientConfig& config) {
  std::string text = config.device;
  for (const auto& member : config.servers) text += "," + host_and_port(member.front());
  return digest_of(text);
}

std::string complete(ClientDraft& draft) {
  ClientConfig& config = draft.config;
  if (config.servers.empty()) return "";
  const auto refuse = [](const char* key, const char* why) {
    return std::string{key} + " does not go with a mirror: " + why;
  };
  if (!draft.paths.empty())
    return refuse("path=", "write further paths behind each server, as a+a2");
  if (config.paths_of_server)
    return refuse("paths=auto", "write further paths behind each server, as a+a2");
  if (config.dynamic_export) return refuse("dynamic-export=", "name the device behind the servers");
  if (config.access) return refuse("access=", "its client always writes; leave it out");
  if (config.uuid != wire::Uuid{}) return refuse("uuid=", "each server's copy has its own");
  if (config.server_id != 0) return refuse("server-id=", "it has several servers");
  if (!config.session_name.empty())
    return refuse("session=", "each server gets a session with a name of its own; leave it out");
  if (!config.extensions)
    return refuse("extensions=false", "its servers must carry out writes once");
  if (config.annex_features != 0)
    return refuse("mode=passive", "its copies would differ; leave it out");
  auto& mirror = config.part<MirrorConfig>();
  if (mirror.group == wire::Uuid{}) mirror.group = group_of(config);
  if (!mirror.vote) return "";
  if (config.servers.size() >= kMaxMembers)
    return "vote= goes with up to " + std::to_string(kVote) + " disks; leave it out";
  const auto has_disk = [&](const rtrs::PathAddress& path) {
    return host_and_port(path) == host_and_port(*mirror.vote);
  };
  for (const auto& server : config.servers)
    if (std::ranges::any_of(server, has_disk))
      return "vote= names a server of a disk, whose loss it would not outlive; name another one";
  return "";
}

std::unique_ptr<DiskSource> source(const ClientConfig& config, const rtrs::Log& log) {
  if (config.servers.empty()) return nullptr;
  return std::make_unique<MirrorSource>(config, log);
}

std::vector<ControlCommand> commands(const ClientConfig& config, DiskSource* source) {
  auto* const mirror = dynamic_cast<MirrorSource*>(source);
  return {{"mirror",
           "status|verify [--from SERVER]|discard SERVER|add HOST[:PORT] [--force]|force SERVER "
           "[--force [--split]]|dissolve SERVER",
           "The members of a mirror, and how far those are that come back; verify compares the "
           "copies, discard does without one, add puts a server with an empty disk in its place, "
           "force goes on with one copy only, dissolve makes one a plain disk again.",
           [&config, mirror](const std::string& words) {
             return about_mirror(config, mirror, words);
           }}};
}

}  // namespace

constinit const ClientAnnex kAnnex{.options = kOptions,
                                   .complete = complete,
                                   .source = source,
                                   .wrapper = nullptr,
                                   .commands = commands};

// ---- The disk -----------------------------------------------------------------------------------

std::shared_ptr<Mirror> MirrorSource::present() {
  const std::lock_guard lock{mutex_};
  return mirror_;
}

std::shared_ptr<Mirror> MirrorSource::usable() {
  const std::lock_guard lock{mutex_};
  if (mirror_ == nullptr || (mirror_->dead() && !mirror_->dissolved()))
    mirror_ = std::make_shared<Mirror>(config_, log_);
  return mirror_;
}

tl::expected<std::unique_ptr<Disk>, Failure> MirrorSource::open(bool readonly,
                                                                const Interrupt& interrupt) {
  auto mirror = usable();
  if (auto attached = mirror->attach(interrupt); !attached) return tl::unexpected(attached.error());
  return std::make_unique<MirrorDevice>(std::move(mirror), config_.device, readonly);
}

tl::expected<void, Failure> MirrorSource::probe() { return Mirror{config_, log_}.attach({}); }

MirrorStatus MirrorSource::members() {
  const auto mirror = present();
  return mirror != nullptr ? mirror->status() : MirrorStatus{};
}

SessionStatus MirrorSource::status() {
  const auto mirror = present();
  return mirror != nullptr ? as_session(config_, mirror->status()) : SessionStatus{};
}

std::string MirrorSource::why_no_paths() const {
  return "the paths of a mirror are those of its URI; write HOST+HOST there for a second one to a "
         "server, and start this program anew";
}

void MirrorSource::add_metrics(Exposition& page) {
  const MirrorStatus status = members();
  page.family("mirror_attached", MetricType::gauge, "1: enough members of the mirror are there.");
  page.sample({}, std::uint64_t{status.live});
  page.family("mirror_member_state", MetricType::gauge, "1 for the state that the member is in.");
  for (const auto& member : status.members) {
    page.state({{"server", member.server}}, name_of(member.progress.standing),
               {"in step", "resync", "waiting", "away"});
  }
  page.family("mirror_member_resync_bytes", MetricType::gauge,
              "What is left to copy until the member is in step.");
  for (const auto& member : status.members)
    page.sample({{"server", member.server}}, member.progress.left * status.region_bytes);
  page.family("mirror_unequal_bytes", MetricType::gauge,
              "What is left to be made equal after a client that died.");
  page.sample({}, status.unequal * status.region_bytes);
  page.family("mirror_differences_total", MetricType::counter,
              "Pieces of the disk in which `mirror verify` found copies that differ.");
  page.sample({}, status.differences);
  page.family("mirror_losses_total", MetricType::counter,
              "How often a member that was in step was lost.");
  page.sample({}, status.losses);
}

void MirrorSource::leave() {
  std::shared_ptr<Mirror> mirror;
  {
    const std::lock_guard lock{mutex_};
    mirror.swap(mirror_);
  }
  if (mirror != nullptr) mirror->leave();
}

}  // namespace rnbd::mirror
