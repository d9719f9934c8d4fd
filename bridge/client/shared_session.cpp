// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/shared_session.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include "bridge/client/interruptible_wait.hpp"
#include "rdma/log_about.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

/// After the last of these a session without a path has had none.
bool tells_of_loss(const rtrs::LogFacts* about) {
  return about != nullptr && (about->event == "path_lost" || about->event == "path_closed" ||
                              about->event == "path_worse");
}

}  // namespace

SharedSession::SharedSession(const ClientConfig& config, rtrs::Log log)
    : config_{config},
      log_{std::move(log)},
      wanted_{.paths = rtrs::PathList{config.paths},
              .disconnected = {},
              .policy = config.policy,
              .naming = config.paths.empty() ? rtrs::PathAddress{} : config.paths.front(),
              .server_id = config.server_id} {}

tl::expected<rtrs::ClientOptions, Failure> SharedSession::options(const std::string& name_suffix,
                                                                  const Wanted& wanted) const {
  rtrs::ClientOptions options;
  options.session_name = config_.session_name.empty() ? make_session_name() : config_.session_name;
  options.session_name += name_suffix;
  options.paths = wanted.paths.all();
  for (const rtrs::PathAddress& path : wanted.disconnected) std::erase(options.paths, path);
  if (options.paths.empty()) {
    return tl::unexpected(
        Failure{ENOTCONN, "all paths were disconnected by command; reconnect one"});
  }
  options.naming = wanted.naming;
  options.server_id = wanted.server_id;
  options.only_this_server = config_.server_id != 0;
  options.lanes = config_.lanes;
  options.spin = config_.spin;
  options.connect_timeout = config_.connect_timeout;
  options.heartbeat_interval = config_.heartbeat;
  options.heartbeat_misses = config_.heartbeat_misses;
  options.header_digest = config_.header_digest();
  options.data_digest = config_.data_digest();
  options.tls = config_.tls;
  options.tls_keys = config_.tls_keys;
  options.auth_keys = config_.auth_keys;
  options.policy = wanted.policy;
  options.no_path_timeout = config_.no_path_timeout;
  options.no_path_error = config_.no_path_error;
  options.reconnect_min = config_.reconnect_min;
  options.reconnect_max = config_.reconnect_max;
  options.settle_time = config_.settle_time;
  options.require_extension = config_.require_extension;
  if (config_.extensions) {
    options.features = rtrs::wire::kFeatureExactlyOnce | rtrs::wire::kFeatureUserMessages |
                       rtrs::wire::kFeatureAccessNotice | rtrs::wire::kFeatureRaces |
                       rtrs::wire::kFeatureSharedIdentity | wire::kFeatureClaims |
                       config_.annex_features;
  }
  options.log = [log = log_, lost_at = path_lost_at_](rtrs::LogLevel level,
                                                      const std::string& text) {
    if (tells_of_loss(rtrs::LogAbout::now())) lost_at->store(std::chrono::steady_clock::now());
    if (log) log(level, text);
  };
  return options;
}

tl::expected<std::shared_ptr<Session>, Failure> SharedSession::connect_for_probe() {
  // Under another name: a server may need a moment to forget this session.
  auto probe = options("-probe", wanted_);
  // The caller that waits learns the reason. Faults of single paths are reported once, below.
  const auto waiting = std::make_shared<std::atomic<bool>>(true);
  probe->log = [log = log_, waiting](rtrs::LogLevel level, const std::string& text) {
    if (log && *waiting && level >= rtrs::LogLevel::warning) log(level, text);
  };
  auto session = Session::connect(*std::move(probe), {});
  *waiting = false;
  if (!session) return session;
  rtrs::Client& client = (*session)->client();
  if (auto tried = try_all_paths(client); !tried) return tl::unexpected(tried.error());
  wanted_.server_id = client.server_id();
  return session;
}

/// One path is enough for a session, so the others would only be missed when they are needed.
tl::expected<void, Failure> SharedSession::try_all_paths(rtrs::Client& client) const {
  constexpr std::chrono::milliseconds kLook{10};
  const auto untried = [](const rtrs::PathStatus& path) {
    return path.state != rtrs::PathState::connected && path.trouble.empty();
  };
  const auto deadline = std::chrono::steady_clock::now() + config_.connect_timeout;
  auto paths = client.paths();
  while (std::ranges::any_of(paths, untried) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kLook);
    paths = client.paths();
  }
  tl::expected<void, Failure> tried;
  for (const rtrs::PathStatus& path : paths) {
    if (path.state == rtrs::PathState::connected) continue;
    const std::string why = untried(path) ? "no answer within connect-timeout" : path.trouble;
    failed_attempts_->note(path.address, why);
    const std::string text = "the path to " + to_string(path.address) + " does not work: " + why;
    if (path.foreign) {
      tried = tl::unexpected(Failure{ESTALE, text + "; correct the path, or leave it out"});
    } else if (log_) {
      log_(rtrs::LogLevel::warning, text);
    }
  }
  return tried;
}

/// Nothing may escape: the callers that wait for the attempt would wait for ever.
tl::expected<std::shared_ptr<Session>, Failure> SharedSession::connect(const Wanted& wanted,
                                                                       const Interrupt& interrupt) {
  try {
    auto all = options("", wanted);
    if (!all) return tl::unexpected(all.error());
    failed_attempts_->clear();
    all->on_failed_attempt = [failed = failed_attempts_](const rtrs::PathAddress& path,
                                                         const std::string& why) {
      failed->note(path, why);
    };
    {
      const std::lock_guard lock{mutex_};
      name_ = all->session_name;
    }
    return Session::connect(*std::move(all), interrupt);
  } catch (const std::exception& error) {
    return tl::unexpected(Failure{ENOMEM, std::string{"cannot connect: "} + error.what()});
  }
}

tl::expected<std::shared_ptr<Session>, Failure> SharedSession::get(const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  const std::uint64_t seen = attempts_;
  if (!interruptible_wait(changed_, lock, interrupt, [this] { return !connecting_; })) {
    return tl::unexpected(Failure{EINTR, "interrupted while connecting"});
  }
  if (session_ != nullptr && session_->alive()) return session_;
  if (attempts_ != seen && session_ == nullptr && last_failure_.error != EINTR) {
    return tl::unexpected(last_failure_);
  }

  connecting_ = true;
  std::shared_ptr<Session> dead = std::move(session_);
  session_ = nullptr;
  std::erase_if(lost_, [](const auto& earlier) { return earlier.expired(); });
  if (dead != nullptr) lost_.push_back(dead);
  Wanted wanted = wanted_;
  const std::uint64_t changes = changes_;
  lock.unlock();
  if (dead != nullptr) wanted.server_id = dead->client().server_id();
  if (dead != nullptr && log_) {
    log_(rtrs::LogLevel::warning,
         "the session was lost (" + dead->failure() + "); connecting anew");
  }
  auto connected = connect(wanted, interrupt);
  lock.lock();
  wanted_.server_id = wanted.server_id;
  connecting_ = false;
  ++attempts_;
  changed_.notify_all();
  if (dead != nullptr) replaced_ = true;
  if (!connected) {
    last_failure_ = connected.error();
    return connected;
  }
  session_ = *connected;
  replaced_at_ = std::chrono::steady_clock::now();
  const bool out_of_date = changes_ != changes || !wanted.disconnected.empty();
  lock.unlock();
  if (out_of_date) bring_up_to_date(**connected);
  if (config_.paths_of_server) learn_paths(**connected, interrupt);
  return connected;
}

bool SharedSession::replaced_lately() {
  std::lock_guard lock{mutex_};
  return replaced_ && std::chrono::steady_clock::now() - replaced_at_ < config_.connect_timeout;
}

void SharedSession::leave() {
  std::shared_ptr<Session> last;
  std::lock_guard lock{mutex_};
  last.swap(session_);
  if (last != nullptr) last->leave();
}

}  // namespace rnbd
