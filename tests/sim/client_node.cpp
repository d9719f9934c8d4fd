// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/client_node.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

constexpr Duration kReconnectDelay = 50ms;
/// As long as nothing can be done the pauses grow, from this to 128 times this.
constexpr Duration kPatience = 20us;
constexpr unsigned kMostFruitless = 7;
/// How soon a leaving client looks again whether it can go on.
constexpr Duration kLookAgain = 1ms;

}  // namespace

ClientNode::ClientNode(const ClientEnvironment& environment, unsigned number,
                       const ClientKnobs& knobs)
    : environment_{environment},
      world_{environment.world},
      number_{number},
      knobs_{knobs},
      node_{world_.add_node()},
      scope_{world_, node_},
      buffers_{world_},
      mappings_(environment.disks.size()),
      table_{&ClientNode::new_device},
      server_id_{knobs.knows_server ? environment.server_id : 0} {}

ClientNode::~ClientNode() = default;

ClientNode::Mapping::State ClientNode::Mapping::state() const {
  using Its = rnbd::ClientDevice::State;
  if (!device) return State::closed;
  if (device->state == Its::opening) return State::opening;
  if (device->state == Its::closing) return State::closing;
  return device->users > 0 ? State::open : State::half_closed;
}

void ClientNode::violate(const std::string& rule) {
  world_.violate("client " + std::to_string(number_) + ", session " +
                 std::to_string(driver_ ? driver_->serial() : 0) + ": " + rule);
}

void ClientNode::start() {
  scope_.after(rng().delay(0us, 5ms), [this] { think(); });
}

void ClientNode::finish() {
  finishing_ = true;
  final_left_ = environment_.knobs.final_operations;
}

std::string ClientNode::wait() const {
  if (!driver_ || !driver_->up()) return "a session";
  if (!transfers_.empty()) {
    return "operation " + std::to_string(transfers_.begin()->second->id) + " and " +
           std::to_string(transfers_.size() - 1) + " others";
  }
  if (!controls_.empty()) return "a control message";
  if (final_left_ > 0) return "a chance to do something";
  return std::to_string(driver_->permits_in_use() + driver_->permits_owing()) +
         " permits to come back";
}

// ---- Decisions ----------------------------------------------------------------------------------

void ClientNode::think() {
  if (left_) return;
  check_waits();
  if (leaving_) {
    decide_leaving();
    return scope_.after(kLookAgain, [this] { think(); });
  }
  const std::uint64_t before = next_;
  decide();
  fruitless_ = next_ == before ? std::min(fruitless_ + 1, kMostFruitless) : 0;
  Duration pause = driver_ ? rng().delay(0us, knobs_.think_max) : kReconnectDelay;
  if (fruitless_ > 0) pause += kPatience * (1U << fruitless_);
  scope_.after(pause, [this] { think(); });
}

void ClientNode::check_waits() {
  if (!driver_) return;
  driver_->check_latency();
  for (const auto& [number, transfer] : transfers_) {
    if (transfer->ended) continue;
    // Of a long one that goes in parts nobody knows what is missing.
    const std::size_t bytes = transfer->buffer ? transfer->buffer->size() : 0;
    const bool whole = bytes <= driver_->limits().max_io_size;
    driver_->check_wait(transfer->begun, transfer->writes, whole ? bytes : 0);
  }
}

void ClientNode::decide() {
  if (!driver_) return connect();
  if (!driver_->up() || !informed_ || driver_->gave_up()) return;
  if (finishing_ && final_left_ == 0) {
    leaving_ = true;
    return;
  }
  if (!finishing_) {
    if (rng().chance(knobs_.cancel)) return cancel_something();
    if (rng().chance(knobs_.disconnect)) return driver_->shut_down(rng().chance(500));
    if (rng().chance(knobs_.change_paths)) driver_->change_paths();
    if (rng().chance(knobs_.close)) {
      Mapping& mapping = mappings_[rng().below(mappings_.size())];
      if (mapping.state() == Mapping::State::open) return close_device(mapping);
    }
    if (rng().chance(30)) return ask_something();
    if (rng().chance(knobs_.close)) return close_what_was_left();
  }
  if (rng().chance(100)) return open_something();
  if (transfers_.size() < knobs_.concurrency) start_transfer();
}

void ClientNode::decide_leaving() {
  if (!driver_) {
    buffers_.check_all();
    left_ = true;
    return;
  }
  if (!driver_->up() || driver_->gave_up() || !idle()) return;
  // Every answer came, and answers to what was given up must come too.
  if (driver_->permits_in_use() != 0 || driver_->permits_owing() != 0) return;
  for (Mapping& mapping : mappings_) {
    if (mapping.device && mapping.device->handle.unresolved->any()) {
      violate("what was given up counts as under way, and no permit is in use");
    }
  }
  for (Mapping& mapping : mappings_) {
    if (mapping.state() == Mapping::State::open) return close_device(mapping);
  }
  driver_->shut_down(/*orderly=*/true);
}

void ClientNode::cancel_something() {
  const std::size_t running = transfers_.size() + controls_.size();
  if (running == 0) return;
  std::size_t chosen = rng().below(running);
  if (chosen < transfers_.size()) {
    Transfer& transfer =
        *std::next(transfers_.begin(), static_cast<std::ptrdiff_t>(chosen))->second;
    if (transfer.ended) return;
    const DevicePtr device = transfer.device;
    cancel(transfer);
    // A client that gives up often leaves altogether.
    if (device->running == 0 && !device->closing && rng().chance(300)) {
      close_device(mappings_[device->slot]);
    }
    return;
  }
  chosen -= transfers_.size();
  cancel(*std::next(controls_.begin(), static_cast<std::ptrdiff_t>(chosen))->second);
}

// ---- Sessions -----------------------------------------------------------------------------------

void ClientNode::connect() {
  ++sessions_;
  informed_ = false;
  reopening_since_.reset();
  table_ = rnbd::DeviceTable{&ClientNode::new_device};
  for (Mapping& mapping : mappings_) mapping = Mapping{};
  std::string name = "client-" + std::to_string(number_);
  if (!knobs_.same_name) name += "-" + std::to_string(sessions_);
  driver_ = std::make_unique<ClientDriver>(
      world_, environment_.network,
      ClientDriver::Setup{environment_.knobs, knobs_, node_, environment_.server, server_id_, name,
                          knobs_.renews ? this : nullptr, [this] { return knows_clone(); }});
  if (knobs_.resends_at_once) environment_.checker.resends_at_once(driver_->serial());
  if (knobs_.renews) environment_.checker.renews(driver_->serial());
  driver_->on_up = [this] { session_up(); };
  driver_->on_down = [this] { session_down(); };
  driver_->start();
}

void ClientNode::session_up() {
  table_.enter(driver_->limits());
  exchange_versions();
}

void ClientNode::session_down() {
  for (const auto& [number, transfer] : transfers_) {
    if (!transfer->ended) {
      violate("operation " + std::to_string(transfer->id) + " never ended, but its session did");
    }
  }
  for (const auto& [number, control] : controls_) {
    if (!control->ended) violate("a control message never ended, but its session did");
  }
  informed_ = false;
  server_id_ = driver_->server_id();
  // The driver is still on the stack.
  scope_.after(rng().delay(0us, kReconnectDelay), [this] { driver_.reset(); });
}

void ClientNode::kill() {
  if (driver_ && !left_) driver_->shut_down(/*orderly=*/false);
}

}  // namespace sim
