// SPDX-License-Identifier: BSD-3-Clause
// One-sided access at a queue pair on a TCP socket: the peer writes to regions and reads them.
#include <cstring>

#include "rdma/transport/tcp/queue_pair.hpp"

namespace rtrs::tcp {

bool TcpQueuePair::begin_region_write(const FrameHeader& header) {
  const auto found = regions_->find(header.key, header.address, header.length, kRegionWrite);
  if (found.why_not != nullptr) return fail(found.why_not);
  arrival_.target = found.at;
  arrival_.in_region = true;
  return true;
}

/// A write in the middle is not acknowledged by dropping the rest: the peer would take it for done.
void TcpQueuePair::on_retired(ConstBytes region) {
  if (!arrival_.active || !arrival_.in_region || arrival_.target == nullptr) return;
  const std::byte* const at = arrival_.target;
  if (at < region.data() || at >= region.data() + region.size()) return;
  arrival_.target = nullptr;
  arrival_.refused = true;
}

bool TcpQueuePair::begin_read(const FrameHeader& header) {
  if (regions_ == nullptr) return fail("the peer reads memory, and was given none");
  message_.resize(header.length);
  arrival_.target = message_.data();
  return true;
}

/// The bytes are those of this moment: behind the writes that came before, and before all others.
bool TcpQueuePair::answer_read(const FrameHeader& header) {
  const auto request = wire::copy_of<ReadRequest>(message_);
  if (!answers_->has_room(queue_.sent())) {
    return fail("the peer reads more at once than it may");
  }
  MutableBytes copy;
  if (request.length > 0) {  // as in verbs, keys of empty operations are not looked at
    const auto found = regions_->find(header.key, header.address, request.length, kRegionRead);
    if (found.why_not != nullptr) return fail(found.why_not);
    copy = answers_->room(request.length);
    std::memcpy(copy.data(), found.at, copy.size());
  }
  FrameHeader answer;
  answer.opcode = static_cast<std::uint8_t>(Opcode::read_data);
  answer.flags = kHasImmediate;
  answer.immediate = request.token;
  answers_->push(post(answer, copy, {}));
  return true;
}

bool TcpQueuePair::begin_read_data(const FrameHeader& header) {
  const RemoteReads::Read* const read =
      reads_ ? reads_->expect(header.immediate, header.length) : nullptr;
  if (read == nullptr) return fail("the peer answered a read that was not asked for");
  if (header.length > 0) arrival_.target = read->into.data();
  return true;
}

Complaint TcpQueuePair::end_read(QueuePairHandler& handler) {
  return handler.on_done(reads_->pop().ticket);
}

}  // namespace rtrs::tcp
