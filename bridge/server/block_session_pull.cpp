// SPDX-License-Identifier: BSD-3-Clause
// PULL: a member of a mirror group copies a range from another one, piece by piece.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/protocol/mirror.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/io_context.hpp"

namespace rnbd {
namespace {

constexpr std::uint64_t kPiece = 1 << 20;  ///< bytes

}  // namespace

/// The request counts as running at the backend until it is answered, so that a claim of another
/// client waits for it.
struct BlockSession::MirrorPull {
  IoContext& io;
  mirror::PullSource source;
  std::uint64_t end = 0;  ///< bytes
  std::vector<std::byte> data;
  BackendRequest write{};
  MirrorPullPtr self{};  ///< while it is written

  BlockSession& session() const { return *io.session; }
};

void BlockSession::mirror_pull(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorPull>(request.message, wire::kMirrorPull);
  if (!message) return finish(request, EINVAL);
  Device* const device = devices_.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  if (!device->is_served()) return finish(request, ESTALE);
  if (!surroundings_.pull) return finish(request, EOPNOTSUPP);
  auto uri = wire::decode_pull_uri(request.data);
  IoPlan plan;
  plan.operation = BackendOperation::write;
  plan.copy = true;
  plan.offset = message->offset;
  plan.length = message->length;
  const bool fits = device->seat->regions_of(plan.offset, plan.length).has_value() &&
                    fit_range(device->geometry(), plan.offset, plan.length);
  if (!uri || !fits) return finish(request, EINVAL);
  mirror::PullSource source{*std::move(uri), device->seat->group(), device->seat->claimant(),
                            plan.offset};
  IoContext& io = take_context(request, *device, plan);
  const MirrorPullPtr pull{new MirrorPull{io, std::move(source), plan.offset + plan.length, {}}};
  pull_next(pull);
}

void BlockSession::pull_next(const MirrorPullPtr& pull) {
  const std::uint64_t left = pull->end - pull->source.offset;
  if (left == 0) return complete(pull->io, 0);
  if (!pull->io.device->is_served()) return complete(pull->io, ESTALE);
  pull->data.resize(std::min(left, kPiece));
  surroundings_.pull(queues_.reactor(), pull->source, pull->data,
                     [this, pull](int error) { write_pulled(pull, error); });
}

void BlockSession::write_pulled(const MirrorPullPtr& pull, int error) {
  if (!pull->io.device->is_served()) return complete(pull->io, ESTALE);
  if (error != 0) return complete(pull->io, EOPNOTSUPP);  // no fault of this storage
  BackendRequest& write = pull->write;
  const bool zeroes =
      pull->io.device->geometry().can_write_zeroes && mirror::only_zeroes(pull->data);
  write.operation = zeroes ? BackendOperation::write_zeroes : BackendOperation::write;
  write.offset = pull->source.offset;
  write.length = pull->data.size();
  write.data = zeroes ? nullptr : pull->data.data();
  write.context = pull.get();
  write.done = [](BackendRequest& written, int failure) {
    auto& its = *static_cast<MirrorPull*>(written.context);
    const MirrorPullPtr kept = std::exchange(its.self, nullptr);
    if (failure != 0) return its.session().complete(its.io, failure);
    its.source.offset += written.length;
    its.session().pull_next(kept);
  };
  pull->self = pull;
  pull->io.device->queue.submit(write);
}

}  // namespace rnbd
