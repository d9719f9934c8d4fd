// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/mirror/peer_members.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/control.hpp"
#include "bridge/client/interruptible_wait.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/client/shared_session.hpp"
#include "bridge/protocol/mirror_messages.hpp"
#include "bridge/server/attempt.hpp"

namespace rnbd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPeerThreads = 4;
/// Of them, for one client. Clients take turns.
constexpr std::size_t kMostReads = 1;
/// Sources: clients choose their URIs.
constexpr std::size_t kMostPeers = 64;
/// Of them, for one client.
constexpr std::size_t kMostPeersOfOne = 15;
/// Shorter than a client takes to be patient with the server that waits for it.
constexpr std::chrono::seconds kPeerPatience{2};
/// For all that one read asks a source. The client copies by itself what takes longer.
constexpr std::chrono::seconds kReadPatience{5};

/// Between two attempts, while there is no memory.
constexpr std::chrono::milliseconds kMemoryPause{10};

rtrs::Log with_uri(const rtrs::Log& log, const std::string& uri) {
  return [log, uri](rtrs::LogLevel level, const std::string& text) {
    log(level, "copying from " + uri + ": " + text);
  };
}

}  // namespace

/// Reads one after the other.
class PeerMembers::Peer {
 public:
  Peer(const std::string& uri, const std::string& keys, const wire::Uuid& client,
       const rtrs::Log& log)
      : client_{client}, log_{with_uri(log, uri)} {
    ConfigReader reader;
    auto done = reader.set("uri", keys == "on" ? uri : uri + "?" + keys);
    auto config = done ? reader.complete() : tl::unexpected(done.error());
    // The client must not choose among the files of this machine.
    if (!config)
      complain(config.error());
    else if (uri.find('?') != std::string::npos || !config->servers.empty() ||
             config->device.empty())
      complain("that is no URI of one disk without options");
    else
      adopt(*std::move(config));
  }

  int read(const mirror::PullSource& source, rtrs::MutableBytes into) {
    AnswerLimit limit{kReadPatience, source.wanted};
    const rtrs::Interrupt interrupt = limit.interrupt();
    const int error = read(source, into, interrupt);
    if (error == 0 || !limit.is_over()) return error;
    complain("it does not answer in time");
    return EHOSTUNREACH;
  }

  const wire::Uuid& client() const { return client_; }
  Clock::time_point used() const { return used_; }
  void touch() { used_ = Clock::now(); }

 private:
  void adopt(ClientConfig config) {
    config.access = wire::AccessMode::read_only;
    config.annex_features = wire::kMirrorFeatures;
    config.lanes = 1;
    config.connect_timeout = config.no_path_timeout = kPeerPatience;
    config_ = std::make_unique<ClientConfig>(std::move(config));
  }

  int read(const mirror::PullSource& source, rtrs::MutableBytes into,
           const rtrs::Interrupt& interrupt) {
    std::unique_lock lock{mutex_, std::defer_lock};
    while (!lock.try_lock_for(kLook)) {
      if (interrupt()) return EHOSTUNREACH;
    }
    if (config_ == nullptr || !connect(interrupt)) return EHOSTUNREACH;
    int error = 0;
    if (source.claimant != host_ || source.disk != disk_) error = be_guest(source, interrupt);
    // The disk may have grown since the device was opened.
    if (error == 0 && source.offset + into.size() > device_->geometry().padded_size)
      (void)device_->look_again(interrupt);
    if (error == 0) error = device_->read(source.offset, into, interrupt);
    if (error == ESTALE && host_ != wire::Uuid{}) {  // claimed anew since
      error = be_guest(source, interrupt);
      if (error == 0) error = device_->read(source.offset, into, interrupt);
    }
    return error == ESTALE ? EHOSTUNREACH : error;
  }

  bool connect(const rtrs::Interrupt& interrupt) {
    if (session_ != nullptr && session_->alive() && session_->has_path()) return true;
    device_.reset();
    session_.reset();
    host_ = {};
    shared_ = std::make_unique<SharedSession>(*config_, log_);
    auto session = shared_->get(interrupt);
    if (!session) return complain(session.error().text), false;
    OpenOptions options;
    options.access = wire::AccessMode::read_only;
    if (((*session)->client().limits().features & wire::kFeatureMirrorDisks) == 0) {
      complain("its rnbd-server is too old to tell which disk it has; install a newer one");
      return false;
    }
    auto device = (*session)->open(config_->device, options, interrupt);
    if (!device) return complain(device.error().text), false;
    session_ = *std::move(session);
    device_ = *std::move(device);
    {
      const std::lock_guard lock{complaint_mutex_};
      complaint_.clear();
    }
    log_(rtrs::LogLevel::info, "connected");
    return true;
  }

  int be_guest(const mirror::PullSource& source, const rtrs::Interrupt& interrupt) {
    host_ = {};
    wire::MirrorGuest message;
    message.header = wire::header_of(wire::kMirrorGuest);
    message.group = source.group;
    message.claimant = source.claimant;
    message.disk = source.disk;
    std::array<std::byte, sizeof(wire::MirrorGuestResponse)> answer{};
    ControlOperation operation{device_->handle(), message, answer};
    const int error = session_->client().run(operation, interrupt);
    if (error == ESTALE)
      complain(
          "nothing is copied, as the server there has another disk than the client of the mirror "
          "means, or does not serve that client; let this address lead to the same server from "
          "here as from the client");
    if (error == 0) host_ = source.claimant, disk_ = source.disk;
    return error;
  }

  void complain(const std::string& text) {
    const std::lock_guard lock{complaint_mutex_};
    if (text != std::exchange(complaint_, text)) log_(rtrs::LogLevel::warning, text);
  }

  /// Between two looks whether the read is wanted, while another one of the same source runs.
  static constexpr std::chrono::milliseconds kLook{100};

  const wire::Uuid client_;  ///< the first that has named it
  const rtrs::Log log_;
  std::unique_ptr<ClientConfig> config_;  ///< null: the URI is wrong
  Clock::time_point used_{};              ///< guarded by PeerMembers
  std::mutex complaint_mutex_;
  std::string complaint_;   ///< guarded by complaint_mutex_
  std::timed_mutex mutex_;  ///< guards all below
  std::unique_ptr<SharedSession> shared_;
  std::shared_ptr<Session> session_;
  std::unique_ptr<RemoteDevice> device_;
  wire::Uuid host_{};       ///< the client for which it reads, as a guest
  std::uint64_t disk_ = 0;  ///< that this client means
};

PeerMembers::PeerMembers(std::string keys, rtrs::Log log)
    : keys_{std::move(keys)}, log_{std::move(log)}, threads_{kPeerThreads} {}

PeerMembers::~PeerMembers() = default;

void PeerMembers::read(const mirror::PullSource& source, rtrs::MutableBytes into,
                       std::function<void(int error)> then) {
  const std::lock_guard lock{mutex_};
  Client& client = clients_[source.client];
  client.waiting.push_back([this, source, into, then = std::move(then)] {
    int error = EHOSTUNREACH;
    const int lacks = attempt([&] {
      if (const auto peer = peer_at(source)) error = peer->read(source, into);
    });
    then(lacks != 0 ? lacks : error);
  });
  if (client.running == kMostReads) return;
  ++client.running;
  run_next(source.client);
}

/// Those that are read just now go with the read, which nobody wants any more.
void PeerMembers::forget(const wire::Uuid& client) {
  std::vector<std::shared_ptr<Peer>> gone;
  const std::lock_guard lock{mutex_};
  for (auto each = peers_.begin(); each != peers_.end();) {
    if (each->second->client() == client) {
      gone.push_back(std::move(each->second));
      each = peers_.erase(each);
    } else {
      ++each;
    }
  }
  if (!gone.empty()) threads_.post([gone = std::move(gone)] {});  // closing may take long
}

/// With the lock held. The client has a thread for it.
void PeerMembers::run_next(const wire::Uuid& session) {
  const auto ended = [this, session] {
    const auto next = [&] {
      const std::lock_guard lock{mutex_};
      run_next(session);
    };
    while (attempt(next) != 0) std::this_thread::sleep_for(kMemoryPause);
  };
  const auto client = clients_.find(session);
  std::deque<std::function<void()>>& waiting = client->second.waiting;
  if (waiting.empty()) {
    if (--client->second.running == 0) clients_.erase(client);
    return;
  }
  threads_.post(waiting.front(), ended);
  waiting.pop_front();
}

/// Null: other clients use all places just now.
std::shared_ptr<PeerMembers::Peer> PeerMembers::peer_at(const mirror::PullSource& source) {
  std::shared_ptr<Peer> goes;  // closed without the lock
  const std::lock_guard lock{mutex_};
  if (const auto known = peers_.find(source.uri); known != peers_.end()) {
    known->second->touch();
    return known->second;
  }
  const auto of_client = std::ranges::count_if(
      peers_, [&](const auto& each) { return each.second->client() == source.client; });
  const bool has_its_share = static_cast<std::size_t>(of_client) >= kMostPeersOfOne;
  if (has_its_share || peers_.size() >= kMostPeers) {
    const auto oldest = oldest_unused(has_its_share ? &source.client : nullptr);
    if (oldest == peers_.end()) return nullptr;
    goes = std::move(oldest->second);
    peers_.erase(oldest);
  }
  auto peer = std::make_shared<Peer>(source.uri, keys_, source.client, log_);
  peer->touch();
  return peers_.emplace(source.uri, std::move(peer)).first->second;
}

/// With the lock held. Nobody reads from it now. `client`: null: any client's.
PeerMembers::Peers::iterator PeerMembers::oldest_unused(const wire::Uuid* client) {
  auto oldest = peers_.end();
  for (auto each = peers_.begin(); each != peers_.end(); ++each) {
    const Peer& peer = *each->second;
    if (each->second.use_count() != 1 || (client != nullptr && peer.client() != *client)) continue;
    if (oldest == peers_.end() || peer.used() < oldest->second->used()) oldest = each;
  }
  return oldest;
}

}  // namespace rnbd
