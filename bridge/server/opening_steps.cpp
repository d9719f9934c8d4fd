// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/opening_steps.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
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

}  // namespace

void OpeningSteps::work(const OpeningPtr& opening, OpenStep step, std::string line,
                        std::function<void()> work, std::function<void()> then) {
  limit(opening);
  opening->enter(step);
  opening->line = std::move(line);
  const auto in_line = [opening, work = std::move(work)] {
    // A late one may have waited for another one.
    if (!opening->is_late()) opening->lacks = attempt(work);
    opening->catalogue.lines().end(opening->line);
  };
  const auto afterwards = [this, opening, then = std::move(then)] {
    if (opening->is_late()) return opening->let_go();
    if (!reserves(opening->step())) opening->enter(OpenStep::judging);
    opening->lacks == 0 ? then() : give_up(opening);
  };
  const auto start = [opening, step, in_line, afterwards] {
    const Surroundings& where = opening->surroundings;
    const int lacks = attempt([&] {
      step == OpenStep::recording ? where.run_recording(opening->reactor, in_line, afterwards)
                                  : where.run_blocking(opening->reactor, in_line, afterwards);
    });
    if (lacks != 0) opening->catalogue.lines().end(opening->line);  // its time will be over
  };
  if (session_.catalogue.lines().begin(opening->line, opening.get(), start)) return;
  if (!reserves(step)) {
    return opening->answer(opening, tl::unexpected(file_hangs(opening->name())));
  }
  opening->lease.reset();
  end_reservation(opening, tl::unexpected(directory_hangs(opening->name())));
}

void OpeningSteps::work_for_a_moment(const OpeningPtr& opening, OpenStep step, std::string line,
                                     std::function<void()> work, std::function<void()> then) {
  constexpr auto kMoment = std::chrono::seconds{3};
  limit(opening);
  opening->enter(step);
  const auto waits = std::make_shared<bool>(true);  // the reactor's
  const auto go_on = [opening, waits, then = std::move(then)] {
    if (!std::exchange(*waits, false)) return;
    opening->wait.reset();
    if (opening->is_late()) return opening->let_go();
    opening->enter(OpenStep::judging);
    then();
  };
  const Surroundings& surroundings = session_.surroundings;
  OpenLines& lines = session_.catalogue.lines();
  if (surroundings.after) {
    opening->wait = surroundings.after(opening->reactor, kMoment, [&lines, line, waits, go_on] {
      lines.give_up(line, waits.get());
      go_on();
    });
  }
  const auto in_line = [&lines, line, work = std::move(work), waits] {
    attempt(work);
    lines.end(line);
  };
  const auto start = [opening, &lines, line, in_line, go_on] {
    const Surroundings& where = opening->surroundings;
    const int lacks = attempt([&] { where.run_blocking(opening->reactor, in_line, go_on); });
    if (lacks != 0) lines.end(line);  // the moment will be over
  };
  if (!lines.begin(line, waits.get(), start)) go_on();
}

/// The results of the work, if there are any, are not to be trusted.
void OpeningSteps::give_up(const OpeningPtr& opening) {
  const bool reserved = reserves(opening->step());
  auto refusal = tl::unexpected(server_lacks(opening->name(), opening->lacks));
  opening->let_go();
  if (reserved) return end_reservation(opening, std::move(refusal));
  opening->answer(opening, std::move(refusal));
}

// ---- Other writers ------------------------------------------------------------------------------

bool OpeningSteps::make_room(const OpeningPtr& opening, const WriterCount* storage,
                             std::function<void()> again) {
  if (opening->kind == OpenKind::again) return false;
  const Surroundings& surroundings = session_.surroundings;
  if (!surroundings.reclaim || opening->remedy == Opening::Remedy::wait_for_leaver) {
    return wait_for_leaver(opening, std::move(again));
  }
  opening->remedy = Opening::Remedy::wait_for_leaver;
  enter_room(*opening);
  const std::string reason = session_.facts.in_words() + " wants to write to " +
                             in_quotes(opening->name()) + ", which it has open";
  surroundings.reclaim(opening->reactor, storage, reason,
                       [opening, again = std::move(again)] { leave_room(*opening, again); });
  return true;
}

/// Waits a moment, because a writer may be about to leave: its machine has closed the disk, and the
/// CLOSE is under way.
bool OpeningSteps::wait_for_leaver(const OpeningPtr& opening, std::function<void()> again) {
  constexpr unsigned kMostWaits = 20;
  constexpr auto kWait = std::chrono::milliseconds{50};
  const Surroundings& surroundings = session_.surroundings;
  if (!surroundings.after || opening->waits == kMostWaits || may_be_its_own(EPERM)) return false;
  ++opening->waits;
  enter_room(*opening);
  opening->wait = surroundings.after(opening->reactor, kWait, [opening, again = std::move(again)] {
    opening->remedy = Opening::Remedy::end_idle_sessions;
    leave_room(*opening, again);
  });
  return true;
}

/// One that has its lease writes beside the others.
void OpeningSteps::enter_room(Opening& opening) {
  opening.enter(opening.lease ? OpenStep::joining : OpenStep::making_room);
}

void OpeningSteps::leave_room(Opening& opening, const std::function<void()>& again) {
  if (opening.is_late()) return opening.let_go();
  if (opening.step() == OpenStep::making_room) opening.enter(OpenStep::judging);
  again();
}

bool OpeningSteps::may_be_its_own(int error) const {
  return error == EPERM && session_.catalogue.lines().hangs(kReservations);
}

// ---- The reservation ----------------------------------------------------------------------------

void OpeningSteps::reserve(const OpeningPtr& opening, Lease lease) {
  if (int error = session_.numbers.verdict(opening->number, opening->name())) {
    opening->end();
    return finish(opening->request, error);
  }
  const std::string closed = lease.storage()->closed_to(session_.facts.features, opening->name());
  if (!closed.empty() && opening->kind != OpenKind::again) {
    return opening->answer(
        opening, tl::unexpected(Failure{EPERM, in_quotes(opening->name()) + ": " + closed}));
  }
  if (lease.writable() && is_closing(lease.storage()->writers())) {
    return opening->answer(opening, tl::unexpected(still_closing(opening->name())));
  }
  if (session_.catalogue.reservations().rejoin(lease, session_.facts.uuid, opening->kind)) {
    return opening->answer(opening, std::move(lease));
  }
  limit(opening);
  opening->lease.emplace(std::move(lease));
  session_.order.begin_reservation();
  opening->remedy = Opening::Remedy::end_idle_sessions;
  const bool migrates = opening->lease->mode() == wire::AccessMode::migration;
  const WriterCount* const writers = opening->lease->storage()->writers();
  if (migrates && make_room(opening, writers, [this, opening] { record(opening); })) return;
  record(opening);
}

void OpeningSteps::record(const OpeningPtr& opening) {
  const auto save = [known = opening.get(), uuid = session_.facts.uuid] {
    known->reservation = known->catalogue.reservations().reserve(*known->lease, uuid, known->kind);
  };
  const auto then = [this, opening] {
    Lease lease = std::move(*std::exchange(opening->lease, std::nullopt));
    if (opening->reservation) return end_reservation(opening, std::move(lease));
    end_reservation(opening,
                    tl::unexpected(unreserved(opening->name(), opening->reservation.error())));
  };
  work(opening, OpenStep::recording, kReservations, save, then);
}

void OpeningSteps::end_reservation(const OpeningPtr& opening, Opening::Result result) {
  session_.order.end_reservation([&] { opening->answer(opening, std::move(result)); });
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
void OpeningSteps::limit(const OpeningPtr& opening) {
  if (!session_.surroundings.after || opening->timer != nullptr) return;
  const std::weak_ptr<Opening> known = opening;
  opening->timer =
      session_.surroundings.after(opening->reactor, session_.facts.open_timeout, [this, known] {
        const OpeningPtr late = known.lock();
        if (late != nullptr && !is_end(late->step())) abandon(late);
      });
}

/// The client may ask again, and its other devices go on. The hanging work ends some day and opens
/// nothing.
void OpeningSteps::abandon(const OpeningPtr& opening) {
  const bool reserved = reserves(opening->step());
  opening->enter(OpenStep::late);
  if (session_.catalogue.lines().give_up(opening->line, opening.get())) opening->let_go();
  if (reserved) return end_reservation(opening, tl::unexpected(directory_hangs(opening->name())));
  opening->answer(opening, tl::unexpected(file_hangs(opening->name())));
}

}  // namespace rnbd
