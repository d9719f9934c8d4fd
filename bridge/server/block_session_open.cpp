// SPDX-License-Identifier: BSD-3-Clause
// OPEN: a device becomes a lease, its session's reservation, and an id. The steps may hang in a
// disk, but keep the client waiting for a limited time only.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/opening.hpp"
#include "bridge/server/rights.hpp"
#include "rdma/core/plant.hpp"

namespace rnbd {
namespace {

std::string why(int error) {
  switch (error) {
    case ENOENT:
      return "there is no such export";
    case EROFS:
      return "it is read-only";
    case EBUSY:
      return "somebody else has its storage";
    case ESTALE:
      return "somebody else may have written since this client looked at it";
    case EAGAIN:
      return "its storage is not there yet";
    default:
      return std::strerror(error);
  }
}

Failure unrecorded(const std::string& name, const std::string& reason) {
  return {EIO, in_quotes(name) + ": cannot record who writes to it: " + reason};
}

Failure refusal_of_referred(const std::string& name, const std::string& uri) {
  return {ENOENT, in_quotes(name) + ": it is a referral to " + uri};
}

Failure refusal_of_stranger(const std::string& name) {
  return {ENOENT, in_quotes(name) + ": this client has no right to it"};
}

/// The client tries both again: EAGAIN is a refusal for now.
Failure file_hangs(const std::string& name) {
  return {EAGAIN, in_quotes(name) + ": opening its file hangs; look at its disk or mount"};
}
}  // namespace

Failure refusal_of(const std::string& name, int error) {
  return {error, in_quotes(name) + ": " + why(error)};
}

Failure directory_hangs(const std::string& name) {
  return {EAGAIN, in_quotes(name) +
                      ": cannot record who writes to it: the state directory does not answer"};
}

void BlockSession::Opening::let_go() {
  if (file && *file) lease.emplace(std::move(**file));
  file.reset();
  if (!lease) return;
  std::shared_ptr<Storage> storage = lease->storage();
  lease.reset();
  // Closing a file may block as long as opening it.
  surroundings.run_blocking(reactor,
                            [&catalogue = catalogue, storage = std::move(storage)]() mutable {
                              catalogue.close(std::move(storage));
                            },
                            {});
  rnbd::record_leaving(catalogue, surroundings, reactor);
}

void BlockSession::open(rtrs::ServerRequest& request) {
  auto wanted = wire::decode_open(request.message);
  // The room for the answer is checked first: nobody could close a device without its id.
  if (!wanted || !request.is_read || request.data.size() < sizeof(wire::OpenResponse))
    return finish(request, EINVAL);
  settle(order_of(request, sizeof(wire::Open)));
  if (int error = verdict(request, wanted->device_name)) return finish(request, error);
  if (Device* device = devices_.find(wanted->device_name)) return answer_open(request, *device);
  if (devices_.full()) return refuse(request, EMFILE);
  const Permission permission = catalogue_.permission(wanted->device_name, user());
  const bool named = catalogue_.has(wanted->device_name);
  const bool is_file = !named && catalogue_.has_search_path();
  const std::string referral = named ? "" : catalogue_.referral_of(wanted->device_name);
  const OpenKind how = open_kind(request, *wanted);
  const auto opening = std::make_shared<Opening>(request, std::move(*wanted), how, *this);
  opening->access.unclaimed = facts_.claims &&
                              (opening->wanted.flags & wire::kOpenUnclaimed) != 0 &&
                              opening->wanted.mode == wire::AccessMode::read_write;
  if (permission == Permission::none) return refuse_stranger(opening);
  // The export has moved to another server. A file of that name here is a remnant.
  if (!referral.empty()) {
    return refuse_unseen(opening, refusal_of_referred(opening->name(), referral));
  }
  if (permission == Permission::read && opening->wanted.mode != wire::AccessMode::read_only) {
    log_.audit_refusal(opening->name(), opening->wanted.mode, "not in rw", rtrs::LogLevel::info);
    return refuse(request, EROFS);
  }
  is_file ? open_file(opening) : open_export(opening);
}

void BlockSession::refuse_stranger(const OpeningPtr& opening) {
  log_.audit_refusal(
      opening->name(), opening->wanted.mode,
      catalogue_.has(opening->name()) ? "not in rw or ro" : "not in rw or ro of the search path",
      rtrs::LogLevel::warning);
  refuse_unseen(opening, refusal_of_stranger(opening->name()));
}

/// As if there were no such export, and not sooner than if there were none.
void BlockSession::refuse_unseen(const OpeningPtr& opening, const Failure& failure) {
  if (!catalogue_.has_search_path()) return opened(opening, tl::unexpected(failure));
  limit(opening);
  const std::string& owner = catalogue_.owner_of_files(facts_.name, facts_.identity);
  opening->line = catalogue_.line_of_file(owner, opening->name());
  const auto work = [opening, owner] {
    if (opening->state != Opening::State::late) {
      opening->catalogue.look_in_vain(owner, opening->name());
    }
    opening->catalogue.lines().end(opening->line);
  };
  const auto then = [this, opening, failure] {
    if (opening->state == Opening::State::late) return;
    opened(opening, tl::unexpected(failure));
  };
  const bool begun = catalogue_.lines().begin(opening->line, opening.get(), [opening, work, then] {
    opening->surroundings.run_blocking(opening->reactor, work, then);
  });
  if (!begun) opened(opening, tl::unexpected(file_hangs(opening->name())));
}

void BlockSession::open_export(const OpeningPtr& opening) {
  const std::string& name = opening->name();
  if (!std::exchange(opening->renewed, true) && catalogue_.is_stale(name)) {
    return renew_export(opening);
  }
  auto lease = catalogue_.open_named(name, opening->access);
  if (lease) return reserve(opening, std::move(*lease));
  const bool retry = lease.error() == EPERM && reclaim(opening, catalogue_.writers(name),
                                                       [this, opening] { open_export(opening); });
  if (retry) return;
  Failure refusal = refusal_of(name, lease.error());
  if (refusal.error == EBUSY || refusal.error == EAGAIN)
    refusal.text = in_quotes(name) + ": " + catalogue_.trouble_of(name);
  if (refusal.error == EPERM)
    refusal.text = in_quotes(name) + ": " + catalogue_.who_writes(catalogue_.writers(name));
  opened(opening, tl::unexpected(std::move(refusal)));
}

/// The name may lead to another storage now.
void BlockSession::renew_export(const OpeningPtr& opening) {
  limit(opening);
  opening->line = opening->name();
  const auto work = [opening] {
    if (opening->state != Opening::State::late) opening->catalogue.renew(opening->name());
    opening->catalogue.lines().end(opening->line);
  };
  const auto then = [this, opening] {
    if (opening->state == Opening::State::late) return;
    queues_.retire_what_is_over();
    open_export(opening);
  };
  const bool begun = catalogue_.lines().begin(opening->line, opening.get(), [opening, work, then] {
    opening->surroundings.run_blocking(opening->reactor, work, then);
  });
  if (!begun) opened(opening, tl::unexpected(file_hangs(opening->name())));
}

void BlockSession::open_file(const OpeningPtr& opening) {
  limit(opening);
  const std::string& owner = catalogue_.owner_of_files(facts_.name, facts_.identity);
  opening->line = catalogue_.line_of_file(owner, opening->name());
  const auto work = [opening, owner] {
    // A late OPEN may have waited for another one.
    if (opening->state != Opening::State::late) {
      opening->file.emplace(opening->catalogue.open_file(owner, opening->name(), opening->access));
    }
    opening->catalogue.lines().end(opening->line);
  };
  const auto then = [this, opening] {
    opening->state == Opening::State::late ? opening->let_go() : found(opening);
  };
  const bool begun = catalogue_.lines().begin(opening->line, opening.get(), [opening, work, then] {
    opening->surroundings.run_blocking(opening->reactor, work, then);
  });
  if (!begun) opened(opening, tl::unexpected(file_hangs(opening->name())));
}

void BlockSession::found(const OpeningPtr& opening) {
  auto file = *std::exchange(opening->file, std::nullopt);
  if (file) return reserve(opening, std::move(*file));
  const Refusal& refusal = file.error();
  const bool retry = refusal.error == EPERM &&
                     reclaim(opening, refusal.writers, [this, opening] { open_file(opening); });
  if (!retry) opened(opening, tl::unexpected(Failure{refusal}));
}

/// Reserves before anything is written, but never beside an earlier reservation of the same device:
/// its CLOSE, still in progress, would undo the next write. A session that migrates joins the
/// present writers, but not one that was cut off.
void BlockSession::reserve(const OpeningPtr& opening, Lease lease) {
  const std::string& name = opening->name();
  if (int error = verdict(opening->request, name)) {
    opening->state = Opening::State::over;
    opening->timer.reset();
    return finish(opening->request, error);
  }
  if (lease.writable() && is_closing(lease.storage()->writers())) {
    return opened(
        opening, tl::unexpected(Failure{EPERM, in_quotes(name) + ": what was under way when it was "
                                                                 "closed has not ended"}));
  }
  if (catalogue_.rejoin(lease, facts_.uuid, opening->open_kind)) {
    return opened(opening, std::move(lease));
  }
  limit(opening);
  opening->lease.emplace(std::move(lease));
  opening->line = ExportCatalogue::line_of_reservations();
  opening->being_reserved = true;
  ++reservations_under_way_;
  const bool migrates = opening->lease->mode() == wire::AccessMode::migration;
  const WriterCount* const writers = opening->lease->storage()->writers();
  opening->reclaimed = false;
  if (migrates && reclaim(opening, writers, [this, opening] { record_reservation(opening); }))
    return;
  record_reservation(opening);
}

void BlockSession::record_reservation(const OpeningPtr& opening) {
  const auto work = [opening, uuid = facts_.uuid] {
    if (opening->state != Opening::State::late) {
      opening->reservation = opening->catalogue.reserve(*opening->lease, uuid, opening->open_kind);
    }
    opening->catalogue.lines().end(opening->line);
  };
  const auto then = [this, opening] {
    if (opening->state == Opening::State::late) return opening->let_go();
    Lease lease = std::move(*std::exchange(opening->lease, std::nullopt));
    if (opening->reservation) return end_reservation(opening, std::move(lease));
    end_reservation(opening,
                    tl::unexpected(unrecorded(opening->name(), opening->reservation.error())));
  };
  const bool begun = catalogue_.lines().begin(opening->line, opening.get(), [opening, work, then] {
    opening->surroundings.run_recording(opening->reactor, work, then);
  });
  if (begun) return;
  opening->lease.reset();
  end_reservation(opening, tl::unexpected(directory_hangs(opening->name())));
}

void BlockSession::end_reservation(const OpeningPtr& opening, tl::expected<Lease, Failure> lease) {
  --reservations_under_way_;
  opening->being_reserved = false;
  const bool more = !held_.empty();
  opened(opening, std::move(lease));
  if (more) go_on();
}

// ---- OPENs that take too long
// ---------------------------------------------------------------------

/// From now on, for all that is done for it. Until it is over the session outlives it, because its
/// request is not finished.
void BlockSession::limit(const OpeningPtr& opening) {
  if (!surroundings_.after || opening->timer != nullptr) return;
  const std::weak_ptr<Opening> known = opening;
  opening->timer = surroundings_.after(queues_.reactor(), facts_.open_timeout, [this, known] {
    const OpeningPtr late = known.lock();
    if (late != nullptr && late->state == Opening::State::running) abandon(late);
  });
}

/// The client may ask again, and its other devices go on. The hanging work ends some day and opens
/// nothing.
void BlockSession::abandon(const OpeningPtr& opening) {
  const std::string& name = opening->name();
  opening->state = Opening::State::late;
  if (catalogue_.lines().give_up(opening->line, opening.get())) opening->let_go();
  const Failure failure = opening->being_reserved ? directory_hangs(name) : file_hangs(name);
  if (std::exchange(opening->being_reserved, false)) --reservations_under_way_;
  const bool more = !held_.empty();
  if (int error = verdict(opening->request, name)) {
    finish(opening->request, error);
  } else if (Device* device = devices_.find(name); device != nullptr && !opening->claim) {
    // Opened by another OPEN of it, or by a copy of this one with a lost answer: it would stay
    // open.
    answer_open(opening->request, *device);
  } else {
    log_.refusal(name, "refused to open " + failure.text);
    refuse(opening->request, failure.error);
  }
  if (more) go_on();
}

/// A late OPEN may hold the right to write. That is no reason to lose a device.
bool BlockSession::may_be_its_own(int error) const {
  return error == EPERM && catalogue_.lines().hangs(ExportCatalogue::line_of_reservations());
}

// ---- The result ---------------------------------------------------------------------------------

bool BlockSession::is_closing(const WriterCount* storage) const {
  return std::ranges::any_of(devices_.slots(), [&](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->closing && device->lease.writable() &&
           device->lease.storage()->writers() == storage;
  });
}

bool BlockSession::writes_to(const WriterCount* storage) const {
  return std::ranges::any_of(devices_.slots(), [&](const std::unique_ptr<Device>& device) {
    return device != nullptr && device->lease.writable() &&
           device->lease.storage()->writers() == storage;
  });
}

/// A reload ends sessions that have lost a right, but cannot see an OPEN that is under way. Returns
/// 0, or the errno that this OPEN gets by the present rights.
int BlockSession::withdrawn_meanwhile(const std::string& name, wire::AccessMode mode) {
  const Permission now = catalogue_.permission(name, user());
  const bool reads = mode == wire::AccessMode::read_only;
  if (now == Permission::write || (reads && now == Permission::read)) return 0;
  log_.audit_refusal(name, mode, "its right was withdrawn meanwhile", rtrs::LogLevel::warning);
  return now == Permission::read ? EROFS : ENOENT;
}

/// The answer may end the session, unless somebody else waits, so nothing of it is touched
/// afterwards.
void BlockSession::opened(const OpeningPtr& opening, tl::expected<Lease, Failure> lease) {
  if (opening->claim) return claimed(opening, std::move(lease));
  opening->state = Opening::State::over;
  opening->timer.reset();
  rtrs::ServerRequest& request = opening->request;
  const std::string& name = opening->name();
  if (int error = verdict(request, name)) return finish(request, error);
  // Another OPEN of the same name may have finished while this one waited for a file.
  if (Device* device = devices_.find(name)) return answer_open(request, *device);
  if (!lease) {
    const Failure failure =
        may_be_its_own(lease.error().error) ? directory_hangs(name) : std::move(lease.error());
    // A client that is content with reading asks again, as clients do by default.
    if (failure.error != EROFS) log_.refusal(name, "refused to open " + failure.text);
    return refuse(request, failure.error);
  }
  if (const int error = withdrawn_meanwhile(name, lease->mode())) return refuse(request, error);
  if (devices_.full()) return refuse(request, EMFILE);
  BackendQueue* queue = queues_.acquire(lease->storage());
  if (queue == nullptr) {
    log_.refusal(name, "refused to open " + in_quotes(name) +
                           ": there are no descriptors or memory for it (LimitNOFILE=)");
    return refuse(request, ENOMEM);
  }
  Device& device = devices_.add(std::make_unique<Device>(
      name, std::move(*lease), *queue, surroundings_.meter(name, queues_.reactor()),
      ThrottleFlow{queues_.reactor()}));
  device.throttle = in_force(catalogue_.throttle_of(name));
  device.open_number = order_of(request, sizeof(wire::Open)).number;
  device.writer_serial = catalogue_.writer_serial(device.lease);
  const auto& seat = device.lease.storage()->seat();
  if (seat != nullptr && seat->taken()) device.seat = seat.get();
  catalogue_.name_writer(device.lease, in_quotes(facts_.name) + " (" + facts_.peer + ")");
  log_.say(rtrs::LogLevel::info, "device_opened", name,
           "opened " + in_quotes(name) + " " + wire::to_string(device.lease.mode()) +
               (device.lease.unclaimed() ? ", unclaimed" : ""));
  if (!facts_.identity.empty() || catalogue_.has_rights(name)) {
    log_.tell(rtrs::LogLevel::info, "open_ok", name,
              audit_line("open ok", {{"peer", facts_.peer},
                                     {"identity", facts_.identity},
                                     {"session", facts_.name},
                                     {"export", name},
                                     {"access", wire::to_string(device.lease.mode())}}));
  }
  if (device.lease.storage()->backend().whereabouts() == Whereabouts::unnamed) {
    log_.refusal(
        name,
        "the file of " + in_quotes(name) +
            " was deleted or replaced: what is written to it is gone when this server ends",
        "file_replaced");
  }
  answer_open(request, device);
}

void BlockSession::answer_open(rtrs::ServerRequest& request, Device& device) {
  const std::uint32_t number = order_of(request, sizeof(wire::Open)).number;
  device.newest_number = std::max(device.newest_number, number);
  device.lease.look_again();
  const wire::OpenResponse response =
      open_response(device.geometry(), device.id,
                    device.lease.mode() != wire::AccessMode::read_only, facts_.max_io_size);
  finish_with(request, rtrs::wire::bytes_of(response));
}

}  // namespace rnbd
