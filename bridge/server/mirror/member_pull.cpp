// SPDX-License-Identifier: BSD-3-Clause
// PULL: a member of a mirror group copies a range from another one, piece by piece.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/protocol/mirror.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/io_requests.hpp"
#include "bridge/server/mirror/member_messages.hpp"
#include "bridge/server/session_facts.hpp"

namespace rnbd {

using mirror::MemberDevice;

namespace {

constexpr std::uint64_t kPiece = 1 << 20;  ///< bytes

}  // namespace

/// The request counts as running at the backend until it is answered, so that a claim of another
/// client waits for it.
struct MemberMessages::Pull {
  MemberMessages& messages;
  Device& device;
  MemberDevice& part;
  IoRequests::Ending complete;
  mirror::PullSource source;
  std::uint64_t end = 0;  ///< bytes
  std::vector<std::byte> data;
  BackendRequest write{};
  PullPtr self{};  ///< while it is written
};

void MemberMessages::pull(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorPull>(request.message, wire::kMirrorPull);
  if (!message) return finish(request, EINVAL);
  Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  auto* const part = part_of<MemberDevice>(device->annexes);
  if (part == nullptr || !part->is_served()) return finish(request, ESTALE);
  if (!reader_) return finish(request, EOPNOTSUPP);
  auto uri = wire::decode_pull_uri(request.data);
  IoPlan plan;
  plan.operation = BackendOperation::write;
  plan.copy = true;
  plan.offset = message->offset;
  plan.length = message->length;
  const bool fits = part->seat().regions_of(plan.offset, plan.length).has_value() &&
                    fit_range(device->geometry(), plan.offset, plan.length);
  if (!uri || !fits) return finish(request, EINVAL);
  // The seat outlives the request, which its device waits for.
  const auto wanted = [seat = &part->seat(), session = part->session()] {
    return seat->serves(session);
  };
  mirror::PullSource source{*std::move(uri), part->seat().group(), part->seat().claimant(),
                            message->disk,   plan.offset,          session_.facts.uuid,
                            wanted};
  const PullPtr pull{new Pull{*this,
                              *device,
                              *part,
                              session_.io.begin(request, *device, plan),
                              std::move(source),
                              plan.offset + plan.length,
                              {}}};
  pull_next(pull);
}

void MemberMessages::pull_next(const PullPtr& pull) {
  const std::uint64_t left = pull->end - pull->source.offset;
  if (left == 0) return pull->complete(0);
  if (!pull->part.is_served()) return pull->complete(ESTALE);
  pull->data.resize(std::min(left, kPiece));
  reader_(reactor(), pull->source, pull->data,
          [this, pull](int error) { write_pulled(pull, error); });
}

void MemberMessages::write_pulled(const PullPtr& pull, int error) {
  if (!pull->part.is_served()) return pull->complete(ESTALE);
  if (error != 0) return pull->complete(EOPNOTSUPP);  // no fault of this storage
  BackendRequest& write = pull->write;
  const bool zeroes = pull->device.geometry().can_write_zeroes && mirror::only_zeroes(pull->data);
  write.operation = zeroes ? BackendOperation::write_zeroes : BackendOperation::write;
  write.copy = true;
  write.offset = pull->source.offset;
  write.length = pull->data.size();
  write.data = zeroes ? nullptr : pull->data.data();
  write.context = pull.get();
  write.done = [](BackendRequest& written, int failure) {
    auto& its = *static_cast<Pull*>(written.context);
    const PullPtr kept = std::exchange(its.self, nullptr);
    if (failure != 0) return its.complete(failure);
    its.source.offset += written.length;
    its.messages.pull_next(kept);
  };
  pull->self = pull;
  pull->part.submit(write);
}

}  // namespace rnbd
