// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/peer_members.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "bridge/client/config.hpp"
#include "bridge/client/control.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/shared_session.hpp"
#include "bridge/protocol/mirror_messages.hpp"

namespace rnbd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPeerThreads = 4;
/// Sources that are not idle: clients choose their URIs.
constexpr std::size_t kMostPeers = 64;
constexpr std::chrono::seconds kIdlePeer{60};
/// Shorter than a client takes to be patient with the server that waits for it.
constexpr std::chrono::seconds kPeerPatience{2};

rtrs::Log with_uri(const rtrs::Log& log, const std::string& uri) {
  return [log, uri](rtrs::LogLevel level, const std::string& text) {
    log(level, "copying from " + uri + ": " + text);
  };
}

}  // namespace

/// Reads one after the other.
class PeerMembers::Peer {
 public:
  Peer(const std::string& uri, const std::string& keys, const rtrs::Log& log)
      : log_{with_uri(log, uri)} {
    ConfigReader reader;
    auto done = reader.set("uri", keys == "on" ? uri : uri + "?" + keys);
    auto config = done ? reader.complete() : tl::unexpected(done.error());
    // The client must not choose among the files of this machine.
    if (!config)
      complain(config.error());
    else if (uri.find('?') != std::string::npos || config->mirror || config->device.empty())
      complain("that is no URI of one disk without options");
    else
      adopt(*std::move(config));
  }

  int read(const mirror::PullSource& source, rtrs::MutableBytes into) {
    const std::lock_guard lock{mutex_};
    used_ = Clock::now();
    if (config_ == nullptr || !connect()) return EHOSTUNREACH;
    if (source.claimant != host_)
      if (const int error = be_guest(source)) return error;
    int error = device_->read(source.offset, into, {});
    if (error == ESTALE) {  // claimed anew since
      error = be_guest(source);
      if (error == 0) error = device_->read(source.offset, into, {});
    }
    return error == ESTALE ? EHOSTUNREACH : error;
  }

  bool idle() {
    const std::unique_lock lock{mutex_, std::try_to_lock};
    return lock && Clock::now() - used_ > kIdlePeer;
  }

 private:
  void adopt(ClientConfig config) {
    config.access = wire::AccessMode::read_only;
    config.is_member = true;
    config.lanes = 1;
    config.connect_timeout = config.no_path_timeout = kPeerPatience;
    config_ = std::make_unique<ClientConfig>(std::move(config));
  }

  bool connect() {
    if (session_ != nullptr && session_->alive() && session_->has_path()) return true;
    device_.reset();
    session_.reset();
    host_ = {};
    shared_ = std::make_unique<SharedSession>(*config_, log_);
    auto session = shared_->get({});
    if (!session) return complain(session.error().text), false;
    OpenOptions options;
    options.access = wire::AccessMode::read_only;
    auto device = (*session)->open(config_->device, options, {});
    if (!device) return complain(device.error().text), false;
    session_ = *std::move(session);
    device_ = *std::move(device);
    complaint_.clear();
    log_(rtrs::LogLevel::info, "connected");
    return true;
  }

  int be_guest(const mirror::PullSource& source) {
    host_ = {};
    wire::MirrorGuest message;
    message.header = wire::header_of(wire::kMirrorGuest);
    message.group = source.group;
    message.claimant = source.claimant;
    std::array<std::byte, sizeof(wire::MirrorGuestResponse)> answer{};
    ControlOperation operation{device_->handle(), message, answer};
    const int error = session_->client().run(operation, {});
    if (error == 0) host_ = source.claimant;
    return error;
  }

  void complain(const std::string& text) {
    if (text != std::exchange(complaint_, text)) log_(rtrs::LogLevel::warning, text);
  }

  const rtrs::Log log_;
  std::unique_ptr<ClientConfig> config_;  ///< null: the URI is wrong
  std::mutex mutex_;
  Clock::time_point used_{};  ///< guarded by mutex_, as all below
  std::string complaint_;
  std::unique_ptr<SharedSession> shared_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<RemoteDevice> device_;
  wire::Uuid host_{};  ///< the client for which it reads, as a guest
};

PeerMembers::PeerMembers(std::string keys, rtrs::Log log)
    : keys_{std::move(keys)}, log_{std::move(log)}, threads_{kPeerThreads} {}

PeerMembers::~PeerMembers() = default;

void PeerMembers::read(const mirror::PullSource& source, rtrs::MutableBytes into,
                       std::function<void(int error)> then) {
  threads_.post([this, source, into, then = std::move(then)] {
    const auto peer = peer_at(source.uri);
    then(peer != nullptr ? peer->read(source, into) : EHOSTUNREACH);
  });
}

std::shared_ptr<PeerMembers::Peer> PeerMembers::peer_at(const std::string& uri) {
  std::map<std::string, std::shared_ptr<Peer>> idle;  // closed without the lock
  const std::lock_guard lock{mutex_};
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    const auto next = std::next(peer);
    if (peer->first != uri && peer->second->idle()) idle.insert(peers_.extract(peer));
    peer = next;
  }
  if (const auto known = peers_.find(uri); known != peers_.end()) return known->second;
  if (peers_.size() == kMostPeers) return nullptr;
  return peers_.emplace(uri, std::make_shared<Peer>(uri, keys_, log_)).first->second;
}

}  // namespace rnbd
