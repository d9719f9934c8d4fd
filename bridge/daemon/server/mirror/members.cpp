// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/mirror/members.hpp"

#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <utility>

#include "bridge/client/uri.hpp"
#include "bridge/daemon/server/mirror/member_files.hpp"
#include "bridge/daemon/server/mirror/peer_members.hpp"
#include "bridge/server/mirror/mirror_annex.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd::mirror {
namespace {

constexpr const char* kPull = "pull";

/// "on", or the keys for it, as in a URI.
std::string set_pull(Settings& settings, const std::string& value) {
  settings.of_annexes[kPull] = value;
  if (value == "on") return "";
  const auto uri = parse_device_uri("rnbds+tcp://any/disk?" + value);
  if (!uri) return uri.error();
  for (const auto& [key, file] : uri->options) {
    const bool known = key == "tls-psk-file" || key == "tls-certificates" || key == "tls-verify" ||
                       key == "auth-psk-file";
    if (!known) return "'" + key + "' is no key to show; write on, or e.g. tls-psk-file=FILE";
  }
  return uri->options.empty() ? "write on, or e.g. tls-psk-file=FILE" : "";
}

constexpr SettingRule kRules[] = {
    {kPull, "on|KEY=VALUE[&...]", "on",
     "Let the client of a mirror have this server copy what it missed from another member, "
     "instead of moving it itself. With keys, as behind '?' in a URI, it shows them to that one: "
     "tls-psk-file=FILE, tls-certificates=DIRECTORY, auth-psk-file=FILE.",
     set_pull},
};

/// Empty: this server copies nothing from other members.
MemberMessages::Reader reader_of(const AnnexStart& start) {
  const auto keys = start.settings.of_annexes.find(kPull);
  if (keys == start.settings.of_annexes.end()) return {};
  return [peers = std::make_shared<PeerMembers>(keys->second, start.log)](
             rtrs::Reactor* reactor, const PullSource& source, rtrs::MutableBytes into,
             std::function<void(int)> then) {
    peers->read(source, into, [reactor, then = std::move(then)](int error) {
      boost::asio::post(reactor->io(), [then, error] { then(error); });
    });
  };
}

tl::expected<std::shared_ptr<ServerAnnex>, std::string> open(const AnnexStart& start) {
  std::shared_ptr<MemberStore> store;
  if (!start.directory.empty()) {
    auto files = MemberFiles::open(start.directory + "/members");
    if (!files) return tl::unexpected(files.error());
    store = *std::move(files);
  }
  return std::make_shared<MirrorAnnex>(std::move(store), start.volatile_epoch, reader_of(start));
}

}  // namespace

const DaemonAnnex kMembers{.settings = kRules, .features = wire::kMirrorFeatures, .open = &open};

}  // namespace rnbd::mirror
