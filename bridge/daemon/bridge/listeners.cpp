// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/listeners.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/notify.hpp"

namespace rnbd {
namespace {

/// Between two attempts.
constexpr std::chrono::seconds kAgain{1};

/// The address, its family or its name may come without a change of the settings.
bool may_come(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == ENXIO || error == EHOSTUNREACH;
}

bool is_local(const std::string& address) {
  return address.starts_with("tcp:127.") || address.starts_with("tcp:[::1]") ||
         address.starts_with("tcp:localhost:");
}

/// Those of the options, or the usual one.
std::vector<nbd::NbdAddress> addresses_of(const BridgeOptions& options, bool inherits) {
  const bool none = options.listen.empty() && options.other_face.empty() && !options.kernel &&
                    options.disks.empty();
  if (!none || inherits) return options.listen;
  nbd::NbdAddress usual;
  usual.host = "127.0.0.1";
  return {usual};
}

void tell_of(const std::string& trouble) {
  log_function()(rtrs::LogLevel::warning,
                 "cannot listen on " + trouble + "; it is tried again every second");
}

}  // namespace

/// Outlives its owner while a name server keeps the thread.
struct BridgeListeners::State {
  struct Late {
    nbd::NbdAddress address;
    std::string trouble;
  };
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  bool telling = false;  ///< on_change() is being called
  std::vector<Status> open;
  std::vector<Late> late;
  std::vector<LeftListener> left;  ///< of those that are open
  Take take;
  std::function<void()> on_change;

  void add(const std::vector<nbd::Listener>& listeners, const std::string& address) {
    for (const nbd::Listener& each : listeners) {
      left.push_back({address, each.fd()});
      open.push_back({each.address(), "", each.reachable_from_outside()});
    }
  }
};

tl::expected<std::unique_ptr<BridgeListeners>, std::string> BridgeListeners::open(
    const BridgeOptions& options) {
  auto inherited = inherited_sockets(Sockets::tcp_and_unix);
  if (!inherited) return tl::unexpected(inherited.error());
  std::unique_ptr<BridgeListeners> self{new BridgeListeners{std::make_shared<State>()}};
  for (const int fd : *inherited) self->first_.emplace_back(fd);
  self->state_->add(self->first_, "");
  const bool is_other = !options.other_face.empty();
  if (is_other && !self->first_.empty()) {
    return tl::unexpected("the service manager hands over sockets for NBD clients, and --listen " +
                          options.other_face + " serves none; take its socket unit away");
  }
  if (is_other) self->state_->open.push_back({options.other_face, "", false});
  for (const nbd::NbdAddress& address : addresses_of(options, !self->first_.empty())) {
    auto opened = nbd::Listener::open(address);
    if (opened) {
      self->state_->add(*opened, text_of(address));
      std::ranges::move(*opened, std::back_inserter(self->first_));
    } else if (may_come(opened.error().error)) {
      tell_of(opened.error().text);
      self->state_->late.push_back({address, opened.error().text});
    } else {
      return tl::unexpected(opened.error().text);
    }
  }
  return self;
}

std::unique_ptr<BridgeListeners> BridgeListeners::of_heir(const BridgeOptions& options) {
  std::unique_ptr<BridgeListeners> self{new BridgeListeners{std::make_shared<State>()}};
  for (const nbd::NbdAddress& address : options.listen)
    self->state_->late.push_back({address, "the predecessor has it"});
  return self;
}

std::vector<nbd::Listener> BridgeListeners::adopt(const std::vector<LeftListener>& left) {
  const std::lock_guard lock{state_->mutex};
  std::vector<nbd::Listener> all;
  for (const LeftListener& each : left) {
    std::vector<nbd::Listener> one;
    one.push_back(nbd::Listener::adopt(each.socket, each.address));
    state_->add(one, each.address);
    std::erase_if(state_->late,
                  [&](const State::Late& late) { return text_of(late.address) == each.address; });
    all.push_back(std::move(one.front()));
  }
  for (State::Late& late : state_->late) late.trouble.clear();
  return all;
}

std::vector<LeftListener> BridgeListeners::left() const {
  const std::lock_guard lock{state_->mutex};
  return state_->left;
}

void BridgeListeners::end() {
  std::unique_lock lock{state_->mutex};
  state_->over = true;
  state_->changed.notify_all();
  state_->changed.wait(lock, [&] { return !state_->telling; });
}

std::vector<nbd::Listener> BridgeListeners::take_first() { return std::exchange(first_, {}); }

void BridgeListeners::await_others(Take take, std::function<void()> on_change) {
  if (state_->late.empty()) return;
  state_->take = std::move(take);
  state_->on_change = std::move(on_change);
  std::thread{[state = state_] { run(state); }}.detach();
}

void BridgeListeners::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock{state->mutex};
  for (std::size_t n = 0; !state->late.empty(); ++n) {
    if (n >= state->late.size()) {
      n = 0;
      state->changed.wait_for(lock, kAgain, [&] { return state->over; });
    }
    if (state->over) return;
    const nbd::NbdAddress address = state->late[n].address;
    lock.unlock();  // a name server may not answer
    auto opened = nbd::Listener::open(address);
    lock.lock();
    if (state->over) return;
    const std::string trouble = opened ? "" : opened.error().text;
    if (std::exchange(state->late[n].trouble, trouble) == trouble) continue;
    if (opened) {
      state->add(*opened, text_of(address));
      state->late.erase(state->late.begin() + static_cast<std::ptrdiff_t>(n--));
      log_function()(rtrs::LogLevel::info, "listening on " + state->open.back().address + " now");
      state->take(std::move(*opened));
    } else {
      tell_of(trouble);
    }
    state->telling = true;
    lock.unlock();
    state->on_change();  // it asks for the status
    lock.lock();
    state->telling = false;
    state->changed.notify_all();
  }
}

std::vector<BridgeListeners::Status> BridgeListeners::status() const {
  const std::lock_guard lock{state_->mutex};
  std::vector<Status> all = state_->open;
  for (const auto& late : state_->late) {
    const std::string address = text_of(late.address);
    all.push_back({address, late.trouble, !is_local(address)});
  }
  return all;
}

std::string BridgeListeners::describe() const {
  std::string open, waiting;
  for (const Status& each : status()) {
    std::string& list = each.trouble.empty() ? open : waiting;
    list += (list.empty() ? "" : ", ") + each.address;
  }
  if (open.empty()) open = "no address yet";
  return waiting.empty() ? open : open + " (waiting for " + waiting + ")";
}

std::vector<ControlCommand> with_listeners(std::vector<ControlCommand> commands,
                                           const BridgeListeners& listeners) {
  const auto status = std::ranges::find(commands, "status", &ControlCommand::name);
  status->help = "The session, its paths, what is open, and the listeners.";
  status->run = [&listeners, of_client = status->run](const std::string& argument) {
    auto answer = of_client(argument);
    if (!answer) return answer;
    (*answer)["listeners"] = Json::array();
    for (const auto& each : listeners.status()) {
      (*answer)["listeners"].push_back({{"listener", each.address},
                                        {"state", each.trouble.empty() ? "listening" : "waiting"},
                                        {"trouble", each.trouble}});
    }
    return answer;
  };
  return commands;
}

}  // namespace rnbd
