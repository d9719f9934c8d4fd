// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/member_device.hpp"

#include <cerrno>
#include <utility>

#include "bridge/server/open_table.hpp"

namespace rnbd::mirror {
namespace {

bool changes(const BackendRequest& request) {
  return request.operation == BackendOperation::write ||
         request.operation == BackendOperation::discard ||
         request.operation == BackendOperation::write_zeroes;
}

void refuse(BackendRequest& request, int error) {
  request.refused = true;
  request.done(request, error);
}

}  // namespace

MemberDevice::MemberDevice(Device& device, std::shared_ptr<Seat> seat, const Services& services,
                           rtrs::Reactor* reactor)
    : device_{device},
      seat_{std::move(seat)},
      services_{services},
      reactor_{reactor},
      inner_{*device.queue} {}

MemberDevice& MemberDevice::of(Device& device, Seat& seat, const Services& services,
                               rtrs::Reactor* reactor) {
  if (auto* const known = part_of<MemberDevice>(device.annexes)) return *known;
  auto made = std::make_unique<MemberDevice>(device, seat.shared_from_this(), services, reactor);
  MemberDevice& part = *made;
  device.annexes.push_back(std::move(made));
  device.queue = &part;
  device.guarded = true;
  return part;
}

/// 0 or an errno. A member has no reservation: its claim excludes others.
int MemberDevice::judge(const BackendRequest& request) const {
  if (is_served()) return 0;
  const bool guest = request.operation == BackendOperation::read && is_guest();
  if (seat_->taken() && !guest) return ESTALE;
  if (request.copy) return EOPNOTSUPP;
  return changes(request) && !device_.lease.writable() ? EROFS : 0;
}

void MemberDevice::submit(BackendRequest& request) {
  if (const int error = judge(request)) return refuse(request, error);
  if (!changes(request) || !seat_->taken()) return inner_.submit(request);
  const auto regions = seat_->regions_of(request.offset, request.length);
  if (!regions) return refuse(request, EIO);  // behind the group's disk
  if (request.copy || seat_->warm(regions->first, regions->second)) return inner_.submit(request);
  if (const int error = seat_->write(session_, regions->first, regions->second))
    return refuse(request, error);
  // The request keeps the device.
  seat_->keep(services_, reactor_, [this, &request, regions](int error) {
    if (error == 0 && !is_served()) return refuse(request, ESTALE);
    if (error != 0) return request.done(request, error);
    // A view may have made the disk smaller meanwhile, as a growth was given up.
    if (!seat_->regions_of(request.offset, request.length)) return refuse(request, EIO);
    seat_->warm_up(regions->first, regions->second);
    inner_.submit(request);
  });
}

}  // namespace rnbd::mirror
