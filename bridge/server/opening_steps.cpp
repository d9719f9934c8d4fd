// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/opening_steps.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/message_order.hpp"
#include "bridge/server/open_numbers.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/session_facts.hpp"

namespace rnbd {
namespace {

/// The line of OpenLines for all reservations: a server has one state directory, so a hanging one
/// holds up all.
constexpr const char* kReservations = "";

Failure unreserved(const std::string& name, const Failure& why) {
  return why.error == ESTALE ? refusal_of(name, ESTALE)
                             : Failure{why.error, in_quotes(name) + ": " + why.text};
}

Failure still_closing(const std::string& name) {
  return {EPERM, in_quotes(name) + ": what was under way when it was closed has not ended"};
}

/// Keeps the opening. A coroutine must not keep this: the opening has it.
std::function<void()> goes_on(Opening& opening) {
  return [self = opening.shared_from_this()] { self->go_on(); };
}

/// The client waits for it, so it is tried until there is memory for it.
void go_on_later(const std::shared_ptr<Opening>& opening) {
  constexpr std::chrono::milliseconds kWant{10};
  while (attempt([&] { opening->services.later(opening->reactor, goes_on(*opening)); }) != 0) {
    std::this_thread::sleep_for(kWant);
  }
}

}  // namespace

// ---- Work on another thread
// ----------------------------------------------------------------------

Failure OpeningSteps::too_late(const Opening& opening) {
  return opening.holds_others ? directory_hangs(opening.name()) : file_hangs(opening.name());
}

Task<tl::expected<void, Failure>> OpeningSteps::work(Opening& opening, OpenStep step,
                                                     std::string line, std::function<void()> work) {
  limit(opening);
  opening.enter(step);
  opening.line = std::move(line);
  if (!begin_work(opening, std::move(work))) {
    opening.lease.reset();
    co_return tl::unexpected(too_late(opening));
  }
  co_await opening.event;
  if (opening.is_late()) co_return tl::unexpected(too_late(opening));
  if (!reserves(step)) opening.enter(OpenStep::judging);
  if (opening.lacks == 0) co_return tl::expected<void, Failure>{};
  opening.let_go();
  co_return tl::unexpected(server_lacks(opening.name(), opening.lacks));
}

/// False: the line hangs, and nothing happens. The opening goes on afterwards.
bool OpeningSteps::begin_work(Opening& opening, std::function<void()> work) {
  const bool reserving = reserves(opening.step());
  const auto leave_line = [self = opening.shared_from_this(), reserving] {
    // Another one may have done its work, or not: nobody does it from now on.
    if (reserving) self->catalogue.reservations().withdraw(self->wish);
    self->catalogue.lines().end(self->line, self.get());
  };
  const auto in_line = [self = opening.shared_from_this(), work = std::move(work), leave_line] {
    // A late one may have waited for another one.
    if (!self->is_late()) self->lacks = attempt(work);
    leave_line();
  };
  const auto start = [self = opening.shared_from_this(), in_line, leave_line, reserving] {
    const Services& where = self->services;
    const auto afterwards = [self] { self->go_on(); };
    const int lacks = attempt([&] {
      if (!reserving) return where.offload(self->reactor, in_line, afterwards);
      self->catalogue.reservations().announce(self->wish);
      where.record(self->reactor, in_line, afterwards);
    });
    if (lacks == 0) return;
    leave_line();
    self->lacks = lacks;
    go_on_later(self);
  };
  const auto turn = reserving ? OpenLines::Turn::all : OpenLines::Turn::one;
  return session_.catalogue.lines().begin(opening.line, &opening, start, turn);
}

Task<bool> OpeningSteps::work_for_a_moment(Opening& opening, OpenStep step, std::string line,
                                           std::function<void()> work) {
  limit(opening);
  opening.enter(step);
  const auto waits = std::make_shared<bool>(true);  // the reactor's
  if (begin_moment(opening, line, std::move(work), waits)) co_await opening.event;
  *waits = false;
  if (opening.is_late()) co_return false;
  opening.wait.reset();
  opening.enter(OpenStep::judging);
  co_return true;
}

/// False: the line hangs, and nothing happens. The opening goes on while `waits`.
bool OpeningSteps::begin_moment(Opening& opening, const std::string& line,
                                std::function<void()> work, const std::shared_ptr<bool>& waits) {
  constexpr auto kMoment = std::chrono::seconds{3};
  const auto go_on = [self = opening.shared_from_this(), waits] {
    if (std::exchange(*waits, false)) self->go_on();
  };
  OpenLines& lines = session_.catalogue.lines();
  const auto give_up = [&lines, line, waits, go_on] {
    lines.give_up(line, waits.get());
    go_on();
  };
  opening.wait = session_.services.after(opening.reactor, kMoment, give_up);
  const auto in_line = [&lines, line, work = std::move(work), waits] {
    attempt(work);
    lines.end(line, waits.get());
  };
  const auto start = [self = opening.shared_from_this(), &lines, line, in_line, go_on, waits] {
    const Services& where = self->services;
    const int lacks = attempt([&] { where.offload(self->reactor, in_line, go_on); });
    if (lacks != 0) lines.end(line, waits.get());  // the moment will be over
  };
  return lines.begin(line, waits.get(), start);
}

// ---- Other writers ------------------------------------------------------------------------------

/// The leaver: a writer's machine has closed the disk, and the CLOSE is under way. An opening that
/// has its lease writes beside the others.
Task<OpeningSteps::Room> OpeningSteps::make_room(Opening& opening, const WriterCount* storage) {
  constexpr unsigned kMostWaits = 20;
  constexpr auto kWait = std::chrono::milliseconds{50};
  if (opening.kind == OpenKind::again) co_return Room::none;
  const Services& services = session_.services;
  const OpenStep step = opening.lease ? OpenStep::joining : OpenStep::making_room;
  if (services.sessions != nullptr && opening.remedy == Opening::Remedy::end_idle_sessions) {
    opening.remedy = Opening::Remedy::wait_for_leaver;
    opening.enter(step);
    const std::string reason = session_.facts.in_words() + " wants to write to " +
                               in_quotes(opening.name()) + ", which it has open";
    services.sessions->reclaim(opening.reactor, storage, reason, goes_on(opening));
  } else {
    if (opening.waits == kMostWaits || may_be_its_own(EPERM)) co_return Room::none;
    auto wait = services.after(opening.reactor, kWait, goes_on(opening));
    if (wait == nullptr) co_return Room::none;
    ++opening.waits;
    opening.wait = std::move(wait);
    opening.remedy = Opening::Remedy::end_idle_sessions;
    opening.enter(step);
  }
  co_await opening.event;
  if (opening.is_late()) co_return Room::late;
  if (step == OpenStep::making_room) opening.enter(OpenStep::judging);
  co_return Room::made;
}

bool OpeningSteps::may_be_its_own(int error) const {
  return error == EPERM && session_.catalogue.lines().keeps_late(kReservations);
}

// ---- The reservation ----------------------------------------------------------------------------

Task<Opening::Result> OpeningSteps::reserve(Opening& opening, Lease lease) {
  const std::string& name = opening.name();
  if (const int error = session_.numbers.verdict(opening.number, name))
    co_return tl::unexpected(Failure{error, ""});
  const std::string closed = lease.storage()->closed_to(session_.facts.features, name);
  if (!closed.empty() && opening.kind != OpenKind::again)
    co_return tl::unexpected(Failure{EPERM, in_quotes(name) + ": " + closed});
  if (lease.writable() && is_closing(lease.storage()->writers()))
    co_return tl::unexpected(still_closing(name));
  ReservationBook& book = session_.catalogue.reservations();
  if (book.rejoin(lease, session_.facts.uuid, opening.kind)) co_return std::move(lease);

  limit(opening);
  session_.order.begin_reservation(opening.claimed);
  opening.holds_others = true;
  opening.lease.emplace(std::move(lease));
  opening.remedy = Opening::Remedy::end_idle_sessions;
  if (opening.lease->mode() == wire::AccessMode::migration) {
    const Room room = co_await make_room(opening, opening.lease->storage()->writers());
    if (room == Room::late) co_return tl::unexpected(too_late(opening));
  }
  const auto ended = [known = opening.weak_from_this()] {
    const auto self = known.lock();
    return self == nullptr || is_end(self->step());
  };
  opening.wish = std::make_shared<ReservationBook::Wish>(*opening.lease, session_.facts.uuid,
                                                         opening.kind, ended);
  const auto save = [known = &opening] { known->catalogue.reservations().reserve(*known->wish); };
  const auto saved = co_await work(opening, OpenStep::recording, kReservations, save);
  if (!saved) co_return tl::unexpected(saved.error());
  Lease reserved = std::move(*std::exchange(opening.lease, std::nullopt));
  const auto& reserved_so = opening.wish->result;
  if (!reserved_so) co_return tl::unexpected(unreserved(name, reserved_so.error()));
  co_return std::move(reserved);
}

void OpeningSteps::end(Opening& opening, const std::function<void()>& answer) {
  opening.end();
  opening.holds_others ? session_.order.end_reservation(opening.claimed, answer) : answer();
}

bool OpeningSteps::is_closing(const WriterCount* storage) const {
  return std::ranges::any_of(session_.devices.slots(), [&](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->closing && device->lease.writable() &&
           device->lease.storage()->writers() == storage;
  });
}

// ---- Openings that take too long ----------------------------------------------------------------

/// From now on, for all that is done for it. Until it is over the session outlives it, because its
/// request is not finished.
void OpeningSteps::limit(Opening& opening) {
  if (opening.timer != nullptr) return;
  const std::weak_ptr<Opening> known = opening.weak_from_this();
  opening.timer =
      session_.services.after(opening.reactor, session_.facts.open_timeout, [this, known] {
        const auto late = known.lock();
        if (late != nullptr && !is_end(late->step())) abandon(*late);
      });
}

/// The client may ask again, and its other devices go on. The hanging work ends some day and opens
/// nothing.
void OpeningSteps::abandon(Opening& opening) {
  opening.enter(OpenStep::late);
  if (session_.catalogue.lines().give_up(opening.line, &opening)) opening.let_go();
  opening.event.wake();
}

}  // namespace rnbd
