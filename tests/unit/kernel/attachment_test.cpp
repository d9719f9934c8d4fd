// SPDX-License-Identifier: BSD-3-Clause
// The table of a disk's life against a model of the kernel's driver with its traps, for many seeds.
#include "bridge/kernel/attachment.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace rnbd::kernel {
namespace {

constexpr std::uint64_t kMiB = 1024 * 1024;

/// The behaviour of nbd.c of Linux 6.12: messages and time.
class ModelKernel {
 public:
  bool mapped() const { return sockets_ > 0; }
  const std::string& identifier() const { return identifier_; }
  std::uint64_t size() const { return size_; }
  bool idle() const { return on_socket_ + stranded_ == 0; }

  /// False: EINVAL.
  bool take(const Message& message) {
    if (message.command == Command::disconnect) return end();
    if (message.command == Command::connect) return connect(message);
    if (!mapped() || message.identifier != identifier_) return false;
    // The queue is frozen first, and what is stranded ends only with a socket that comes after.
    if (message.size != 0 && stranded_ > 0) hangs = true;
    if (message.size != 0) size_ = message.size;
    if (!message.sockets.empty() && dead_) dead_ = false;
    return true;
  }

  void begin_request() {
    if (mapped() && !dead_) ++on_socket_;
  }
  void end_request() { on_socket_ -= std::min(on_socket_, 1U); }
  /// Of a bridge that dies; `stored`: its socket lives on, so that nobody notices.
  void bridge_dies(bool stored) {
    if (stored && on_socket_ > 0) loses_requests = true;
    dead_ = mapped();
    stranded_ += std::exchange(on_socket_, 0);
  }
  /// io_timeout has passed.
  void timer() {
    if (dead_) return;
    if (sockets_ > 1 && on_socket_ > 0) kills_what_lives = true;
    on_socket_ += std::exchange(stranded_, 0);
  }

  bool hangs = false;
  bool kills_what_lives = false;
  bool loses_requests = false;
  bool second_device = false;  ///< the mapping has two, or one that nobody finds again

 private:
  bool connect(const Message& message) {
    second_device = second_device || mapped();
    identifier_ = message.identifier;
    sockets_ = message.sockets.size();
    size_ = message.size;
    return true;
  }
  bool end() {
    *this = ModelKernel{};
    return true;
  }

  std::string identifier_;
  std::size_t sockets_ = 0;
  bool dead_ = false;
  std::uint64_t size_ = 0;
  unsigned on_socket_ = 0;
  unsigned stranded_ = 0;  ///< sent on a socket that has died
};

/// A bridge that lives by a table, and everything that happens to it.
class World {
 public:
  World(std::span<const Row> rows, unsigned seed) : rows_{rows}, random_{seed} {}

  /// "" or what is wrong.
  std::string live(unsigned steps) {
    start();
    for (unsigned i = 0; i < steps && wrong_.empty(); ++i) {
      step();
      look();
    }
    return wrong_;
  }

 private:
  void step() {
    switch (random_() % 13) {
      case 0:
        return die_and_start();
      case 1:
        export_size_ += kMiB;
        return;
      case 2:
      case 3:
        return follow_size();
      case 4:
        return kernel_.timer();
      case 5:
        return unmap_and_start();
      case 6:
        return another_disk();
      case 7:
      case 8:
        return kernel_.end_request();
      case 9:
        return hand_over();
      default:
        return kernel_.begin_request();
    }
  }

  Message everything() const {
    return {.command = Command::connect,
            .index = 0,
            .identifier = disk_,
            .sockets = {3, 4},
            .size = export_size_,
            .flags = 0,
            .dead_timeout = 3600};
  }

  bool tell(const Row* row) {
    if (row == nullptr || row->action != Action::tell) return false;
    return kernel_.take(message_of(*row->message, everything()));
  }

  void start() {
    bridge_ = Attachment{rows_};
    const bool found = kernel_.mapped() && !kernel_.identifier().empty();
    const Event event = !found                          ? Event::found_none
                        : kernel_.identifier() == disk_ ? Event::found_own
                                                        : Event::found_other;
    const Row* row = bridge_.on(event);
    if (event == Event::found_other) {
      if (tell(row)) wrong_ = "a device has got another disk";
      return;
    }
    const bool taken = tell(row);
    bridge_.on(taken ? Event::joined : Event::refused);
    if (!taken) wrong_ = "the kernel has refused a socket for its own device";
  }

  void die_and_start() {
    kernel_.bridge_dies(stored_);
    stored_ = false;  // what was taken before is shut down
    start();
  }
  /// A few requests end in time, many do not.
  void hand_over() {
    if (bridge_.state() != State::serving) return;
    stored_ = is_handed(bridge_.on(Event::stop_to_hand));
    if (bridge_.state() != State::draining) return;
    for (int i = 0; i < 3; ++i) kernel_.end_request();
    stored_ = is_handed(bridge_.on(kernel_.idle() ? Event::drained : Event::late));
    if (!stored_) return die_and_start();
    if (!kernel_.idle()) kernel_.bridge_dies(stored_);
    stored_ = false;  // the successor takes it
    bridge_ = Attachment{rows_};
    const Row* const row = bridge_.on(Event::found_kept);
    if (row == nullptr || row->action != Action::resume) wrong_ = "a socket was left in vain";
  }
  static bool is_handed(const Row* row) { return row != nullptr && row->action == Action::hand; }
  void follow_size() {
    if (bridge_.state() != State::serving || export_size_ == kernel_.size() || !kernel_.idle())
      return;
    tell(bridge_.on(Event::grown));
    if (kernel_.size() != export_size_) wrong_ = "the device has not grown with its export";
  }
  void unmap_and_start() {
    if (bridge_.state() != State::serving) return;
    tell(bridge_.on(Event::stop));
    if (kernel_.mapped()) wrong_ = "what was unmapped is still there";
    start();
  }
  /// Under the same name, while the bridge was dead.
  void another_disk() {
    kernel_.bridge_dies(stored_);
    stored_ = false;
    disk_ = "rnbd:other:one";
    start();
    if (bridge_.state() != State::absent) wrong_ = "another disk is served";
    disk_ = "rnbd:this:one";
    start();
  }
  void look() {
    if (kernel_.hangs) wrong_ = "the kernel hangs";
    if (kernel_.kills_what_lives) wrong_ = "the kernel ends sockets that live";
    if (kernel_.loses_requests) wrong_ = "requests are lost, and the kernel waits for them";
    if (kernel_.second_device) wrong_ = "the mapping has a second device";
  }

  std::span<const Row> rows_;
  std::mt19937 random_;
  ModelKernel kernel_;
  Attachment bridge_{rows_};
  std::string disk_ = "rnbd:this:one";
  bool stored_ = false;  ///< the service manager has the socket
  std::uint64_t export_size_ = 64 * kMiB;
  std::string wrong_;
};

/// The first thing that goes wrong in a hundred lives; "" = nothing.
std::string first_trouble(std::span<const Row> rows) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::string wrong = World{rows, seed}.live(200);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

/// The table with one message changed.
std::vector<Row> planted(Event event, const std::function<void(Carried&)>& change) {
  std::vector<Row> rows{attachment_rows().begin(), attachment_rows().end()};
  const auto row = std::ranges::find_if(
      rows, [&](const Row& one) { return one.event == event && one.message.has_value(); });
  REQUIRE(row != rows.end());
  change(*row->message);
  return rows;
}

std::vector<Row> with_row(State from, Event event, Row other) {
  std::vector<Row> rows{attachment_rows().begin(), attachment_rows().end()};
  const auto row = std::ranges::find_if(
      rows, [&](const Row& one) { return one.from == from && one.event == event; });
  REQUIRE(row != rows.end());
  *row = other;
  return rows;
}

TEST_CASE("the table that ships falls into none of the kernel's traps") {
  CHECK(first_trouble(attachment_rows()) == "");
}

TEST_CASE("wrong tables are found out") {
  CHECK(first_trouble(planted(Event::found_own, [](Carried& c) { c.size = true; })) ==
        "the kernel hangs");
  CHECK(first_trouble(planted(Event::found_none, [](Carried& c) { c.sockets = 2; })) ==
        "the kernel ends sockets that live");
  CHECK(first_trouble(planted(Event::found_none, [](Carried& c) { c.identifier = false; })) ==
        "the mapping has a second device");
  CHECK(first_trouble(planted(Event::found_own, [](Carried& c) { c.identifier = false; })) ==
        "the kernel has refused a socket for its own device");
  CHECK(first_trouble(planted(Event::grown, [](Carried& c) { c.size = false; })) ==
        "the device has not grown with its export");
  CHECK(first_trouble(with_row(State::absent, Event::found_other,
                               {State::absent, Event::found_other, State::serving,
                                Action::nothing})) == "another disk is served");
  CHECK(first_trouble(with_row(State::serving, Event::stop,
                               {State::serving, Event::stop, State::absent, Action::nothing})) ==
        "what was unmapped is still there");
  CHECK(first_trouble(
            with_row(State::serving, Event::stop_to_hand,
                     {State::serving, Event::stop_to_hand, State::serving, Action::hand})) ==
        "requests are lost, and the kernel waits for them");
  CHECK(first_trouble(with_row(State::draining, Event::late,
                               {State::draining, Event::late, State::handed_over, Action::hand})) ==
        "requests are lost, and the kernel waits for them");
}

TEST_CASE("no state has two answers to one event, and every message may be sent") {
  const Message all{.command = Command::connect,
                    .index = 1,
                    .identifier = "rnbd:a:b",
                    .sockets = {3, 4},
                    .size = kMiB,
                    .flags = 1,
                    .dead_timeout = 60};
  for (const Row& row : attachment_rows()) {
    CHECK(std::ranges::count_if(attachment_rows(), [&](const Row& other) {
            return other.from == row.from && other.event == row.event;
          }) == 1);
    CHECK(row.message.has_value() == (row.action == Action::tell));
    if (row.message) CHECK(complaint_about(message_of(*row.message, all)) == "");
  }
}

TEST_CASE("what must never reach the kernel is not sent, whoever asks for it") {
  const Message good{.command = Command::reconfigure,
                     .index = 1,
                     .identifier = "rnbd:a:b",
                     .sockets = {3},
                     .size = 0,
                     .flags = 0,
                     .dead_timeout = 0};
  REQUIRE(complaint_about(good) == "");
  const auto with = [&good](const std::function<void(Message&)>& change) {
    Message message = good;
    change(message);
    return complaint_about(message);
  };
  CHECK(with([](Message& m) { m.size = kMiB; }) != "");
  CHECK(with([](Message& m) { m.sockets = {3, 4}; }) != "");
  CHECK(with([](Message& m) { m.sockets.clear(); }) != "");
  CHECK(with([](Message& m) { m.identifier.clear(); }) != "");
  CHECK(with([](Message& m) { m.index.reset(); }) != "");
  CHECK(with([](Message& m) { m.command = Command::connect; }) != "");
  CHECK(with([](Message& m) {
          m = {.command = Command::disconnect,
               .index = {},
               .identifier = "",
               .sockets = {},
               .size = 0,
               .flags = 0,
               .dead_timeout = 0};
        }) != "");
}

}  // namespace
}  // namespace rnbd::kernel
