// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/checker.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace sim {
namespace {

std::string text_of(Stamp value) {
  if (value == 0) return "zeroes";
  if (value == kGarbage) return "bytes that nobody wrote";
  return "sector " + std::to_string(index_of(value)) + " of operation " +
         std::to_string(operation_of(value));
}

std::string place(unsigned disk, std::uint64_t sector) {
  return "sector " + std::to_string(sector) + " of disk" + std::to_string(disk);
}

}  // namespace

void Checker::violate(OperationId id, const std::string& rule) {
  const OperationPlan& plan = of(id).plan;
  world_.violate("operation " + std::to_string(id) + " (" + to_string(plan.action) + " of " +
                 std::to_string(plan.count) + " sectors at " + std::to_string(plan.first) +
                 " of disk" + std::to_string(plan.disk) + ", session " +
                 std::to_string(plan.session) + "): " + rule);
}

// ---- Clients ------------------------------------------------------------------------------------

OperationId Checker::begin(const OperationPlan& plan) {
  if (used_.size() <= plan.session) used_.resize(plan.session + 1);
  used_[plan.session] = true;
  Operation operation;
  operation.plan = plan;
  operation.began = ++moment_;
  if (!plan.fua && is_change(plan.action)) openings_[plan.opening].dirty = true;
  const Disk& disk = disks_[plan.disk];
  for (std::uint64_t i = 0; i < plan.count; ++i) {
    operation.start.push_back(disk.sector(plan.first + i).last());
  }
  operation.executed.resize(plan.count);
  operation.executed_here.resize(plan.count);
  if (plan.action == Action::flush) {
    for (std::uint64_t i = 0; i < disk.sectors(); ++i) {
      operation.covers.push_back(disk.sector(i).acknowledged);
    }
  }
  operations_.push_back(std::move(operation));
  active_.push_back(operations_.size());
  world_.note("checker", operations_.size(), to_string(plan.action), plan.disk, plan.first,
              plan.count);
  return operations_.size();
}

void Checker::finish(OperationId id, int error, std::span<const std::byte> data) {
  Operation& operation = of(id);
  world_.note("checker", id, "told", static_cast<std::uint64_t>(error));
  if (operation.state != State::pending) return violate(id, "was answered twice");
  operation.state = error == 0 ? State::done : State::failed;
  operation.told = ++moment_;
  forget_active(id);
  if (error != 0) return check_error(id, error);
  if (!operation.plan.allowed) return violate(id, "changed a disk that was opened read-only");
  if (!operation.plan.offered) return violate(id, "flushed a disk that cannot be flushed");
  switch (operation.plan.action) {
    case Action::read:
      return check_read(id, data);
    case Action::flush:
      return settle_flush(id);
    default:
      return check_change(id);
  }
}

void Checker::finish_status(OperationId id, int error,
                            const std::vector<rnbd::wire::Extent>& extents) {
  Operation& operation = of(id);
  operation.state = error == 0 ? State::done : State::failed;
  forget_active(id);
  if (error != 0) return check_error(id, error);
  std::uint64_t offset = 0;
  for (const auto& extent : extents) {
    const std::uint64_t end = offset + extent.length;
    for (; offset < end && offset / kSector < operation.plan.count; offset += kSector) {
      if ((extent.flags & rnbd::wire::kExtentZero) == 0) continue;
      if (!had(operation, static_cast<std::uint32_t>(offset / kSector), 0)) {
        return violate(id, "was told that a sector with data is zero");
      }
    }
    offset = end;
  }
}

/// Whether a sector had a value at some moment since the operation began.
bool Checker::had(const Operation& operation, std::uint32_t index, Stamp value) const {
  const auto& history = disks_[operation.plan.disk].sector(operation.plan.first + index).history;
  return std::any_of(history.begin() + operation.start[index], history.end(),
                     [&](const Disk::Entry& entry) { return entry.value == value; });
}

void Checker::abandon(OperationId id, bool failed) {
  if (failed) of(id).failed = ++moment_;
  world_.note("checker", id, "abandoned");
  of(id).state = State::abandoned;
  if (!is_gone(of(id).plan.session)) return;
  of(id).over = true;
  forget_active(id);
}

void Checker::forget_active(OperationId id) {
  active_.erase(std::remove(active_.begin(), active_.end(), id), active_.end());
}

void Checker::check_error(OperationId id, int error) {
  const Operation& operation = of(id);
  const OperationPlan& plan = operation.plan;
  if (!plan.allowed && error == EROFS) return;
  if (!plan.offered && (error == EOPNOTSUPP || error == EIO)) return;  // EIO: it was told otherwise
  if (openings_[plan.opening].closing && error == ENOTCONN) return;
  if (is_loss_told(id, error)) return;
  const auto& errors = operation.errors;
  if (std::find(errors.begin(), errors.end(), error) != errors.end()) return;
  violate(id, std::string{"was answered with an error that nothing had: "} + std::strerror(error));
}

void Checker::check_read(OperationId id, std::span<const std::byte> data) {
  const Operation& operation = of(id);
  const Disk& disk = disks_[operation.plan.disk];
  for (std::uint32_t i = 0; i < operation.plan.count; ++i) {
    const std::uint64_t number = operation.plan.first + i;
    const Stamp value = read_pattern(data.data() + i * kSector, disk.valid_bytes(number), true);
    if (!had(operation, i, value)) {
      return violate(id, "read " + text_of(value) + " from " + place(operation.plan.disk, number) +
                             ", which did not have it meanwhile (it has " +
                             text_of(disk.value(number)) + ")");
    }
  }
}

void Checker::check_change(OperationId id) {
  const Operation& operation = of(id);
  const OperationPlan& plan = operation.plan;
  Disk& disk = disks_[plan.disk];
  const bool durable = plan.fua || !disk.knobs().volatile_cache;
  of(id).may_be_lost = !durable;
  for (std::uint32_t i = 0; i < plan.count; ++i) {
    Disk::Sector& sector = disk.sector(plan.first + i);
    std::uint32_t position = 0;
    if (plan.action == Action::write) {
      position = operation.executed[i];
    } else {
      // Perhaps a neighbour's zeroes, but ours are not older. A lost write may have come twice.
      for (std::uint32_t p = operation.start[i] + 1; p <= sector.last(); ++p) {
        if (sector.history[p].action != plan.action) continue;
        if (position == 0 || sector.lost(position)) position = p;
        if (!sector.lost(p)) break;
      }
    }
    if (position == 0) {
      return violate(id,
                     "was acknowledged, but " + place(plan.disk, plan.first + i) + " never got it");
    }
    of(id).executed[i] = position;
    sector.newest = std::max(sector.newest, id);
    sector.acknowledged = std::max(sector.acknowledged, position);
    if (durable) promise(id, plan.first + i, position);
  }
  if (!durable) note_losses(of(id));
}

void Checker::settle_flush(OperationId id) {
  const Operation& operation = of(id);
  const Opening& opening = openings_[operation.plan.opening];
  if (opening.knows.losses && opening.first_lost < operation.began) {
    return violate(id, "succeeded, although what had been acknowledged was lost with the power");
  }
  const Disk& disk = disks_[operation.plan.disk];
  for (std::uint64_t i = 0; i < operation.covers.size(); ++i) {
    // The writer of the sector has a flush of its own that fails.
    if (!disk.sector(i).lost(operation.covers[i])) promise(id, i, operation.covers[i]);
  }
}

/// Of an acknowledged change sectors turn out to be lost, each of them once.
void Checker::note_losses(Operation& operation) {
  operation.known_lost.resize(operation.plan.count);
  for (std::uint32_t i = 0; i < operation.plan.count; ++i) {
    const Disk::Sector& sector = disks_[operation.plan.disk].sector(operation.plan.first + i);
    if (operation.known_lost[i] || !sector.lost(operation.executed[i])) continue;
    operation.known_lost[i] = true;
    Opening& opening = openings_[operation.plan.opening];
    opening.first_lost = std::min(opening.first_lost, operation.told);
  }
}

/// A flush that fails because the power was lost: that may be told once, at least.
bool Checker::is_loss_told(OperationId id, int error) {
  const Operation& operation = of(id);
  if (operation.plan.action != Action::flush || error != EIO) return false;
  Opening& opening = openings_[operation.plan.opening];
  opening.first_lost = kNever;
  if (std::find(operation.errors.begin(), operation.errors.end(), EIO) != operation.errors.end()) {
    return false;  // the disk's own
  }
  if (!opening.dirty || !opening.knows.losses) return false;
  if (operation.began < opening.learnt) return true;  // whenever it ends
  if (opening.power_loss == 0) return false;
  // Several flushes may have been under way when the client learnt of it.
  const bool learnt = opening.reopened > opening.power_loss;
  if (learnt && operation.began > opening.reopened) opening.power_loss = 0;
  return true;
}

void Checker::power_lost(unsigned disk) {
  ++moment_;
  for (Opening& opening : openings_) {
    if (opening.disk == disk && !opening.closed) opening.power_loss = moment_;
  }
  for (Operation& operation : operations_) {
    if (operation.may_be_lost && operation.plan.disk == disk) note_losses(operation);
  }
}

/// The client was told that the value at `position` of a sector is durable.
void Checker::promise(OperationId id, std::uint64_t number, std::uint32_t position) {
  const unsigned disk = of(id).plan.disk;
  Disk::Sector& sector = disks_[disk].sector(number);
  sector.promised = std::max(sector.promised, position);
  if (sector.durable < position || sector.lost(position)) {
    violate(id, "was acknowledged as durable, but " + place(disk, number) + " could still lose " +
                    text_of(sector.history[position].value));
  }
}

// ---- The storage --------------------------------------------------------------------------------

bool Checker::may_execute(const Operation& operation) const {
  const bool open =
      operation.state == State::pending || (operation.state == State::abandoned && !operation.over);
  return open && operation.plan.allowed && !is_gone(operation.plan.session) &&
         !openings_[operation.plan.opening].closed;
}

void Checker::executes(unsigned disk, std::uint64_t sector, Action action, Stamp value,
                       bool no_unmap) {
  world_.note("disk", disk, to_string(action), sector, value);
  if (!disks_[disk].writable()) {
    return world_.violate(place(disk, sector) + " was changed, but the export is read-only");
  }
  if (action != Action::write) return executes_zeroing(disk, sector, action, no_unmap);
  if (value == 0) return executes_zeroing(disk, sector, Action::zero_data, false);
  executes_write(disk, sector, value);
}

void Checker::executes_write(unsigned disk, std::uint64_t sector, Stamp value) {
  const OperationId id = operation_of(value);
  if (value == kGarbage || id == 0 || id > operations_.size() ||
      index_of(value) >= of(id).plan.count) {
    return world_.violate("the server wrote " + text_of(value) + " to " + place(disk, sector));
  }
  Operation& operation = of(id);
  const OperationPlan& plan = operation.plan;
  const std::uint64_t index = index_of(value);
  const std::string wrote = "wrote " + text_of(value) + " to " + place(disk, sector);
  if (plan.action != Action::write || plan.disk != disk || plan.first + index != sector) {
    return violate(id, wrote + ", which is the wrong place");
  }
  if (operation.executed_here[index] && !plan.may_repeat) return violate(id, wrote + " twice");
  if (!plan.allowed) return violate(id, wrote + ", but the device is open read-only");
  if (is_gone(plan.session)) return violate(id, wrote + " after the session was gone");
  if (openings_[plan.opening].closed) return violate(id, wrote + " after CLOSE was answered");
  if (!may_execute(operation)) return violate(id, wrote + " after it was answered");
  last_writes_[{disk, plan.session}] = {
      world_.now(), life_, openings_[plan.opening].mode == rnbd::wire::AccessMode::migration};
  if (const OperationId newest = disks_[disk].sector(sector).newest;
      operation.failed != 0 && newest != 0 && of(newest).began > operation.failed &&
      of(newest).plan.session == plan.session) {
    return violate(id, wrote + " over what was asked for after it had failed");
  }
  const std::uint32_t position = disks_[disk].apply(sector, value, Action::write);
  // A repeated write is as durable as it was the first time.
  std::uint32_t& executed = operation.executed[index];
  if (executed == 0 || disks_[disk].sector(sector).lost(executed)) executed = position;
  operation.executed_here[index] = true;
}

/// Zeroes have no author: somebody must have asked for them here, in this way.
void Checker::executes_zeroing(unsigned disk, std::uint64_t sector, Action action, bool no_unmap) {
  const bool asked = std::any_of(active_.begin(), active_.end(), [&](OperationId id) {
    const OperationPlan& plan = of(id).plan;
    return plan.action == action && plan.disk == disk && plan.first <= sector &&
           sector - plan.first < plan.count && plan.no_unmap == no_unmap && may_execute(of(id));
  });
  if (!asked) {
    return world_.violate(std::string{to_string(action)} + " of " + place(disk, sector) +
                          ", but nobody who may has asked for it");
  }
  const bool keeps = action == Action::discard && world_.rng().chance(300);
  disks_[disk].apply(sector, keeps ? disks_[disk].value(sector) : 0, action);
}

void Checker::fails(unsigned disk, Action action, std::uint64_t first, std::uint64_t count,
                    int error) {
  world_.note("disk", disk, "fails", first, count, static_cast<std::uint64_t>(error));
  for (const OperationId id : active_) {
    Operation& operation = of(id);
    const OperationPlan& plan = operation.plan;
    if (plan.disk != disk) continue;
    const bool same =
        plan.action == action || (plan.action == Action::zero_data && action == Action::write);
    const bool hit = action == Action::flush
                         ? plan.action == Action::flush || plan.fua
                         : same && first < plan.first + plan.count && plan.first < first + count;
    if (hit) operation.errors.push_back(error);
  }
}

}  // namespace sim
