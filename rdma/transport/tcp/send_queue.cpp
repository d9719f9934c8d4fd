// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/send_queue.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "rdma/one_call.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs::tcp {
namespace {

constexpr std::size_t kFirstRing = 16;     ///< frames; power of two
constexpr std::size_t kMaxVector = 96;     ///< pieces per system call; three per frame at most
constexpr std::size_t kSmall = 32 * 1024;  ///< bytes of data; less is small
/// Bytes that may overtake a frame, and what one of them counts at least.
constexpr std::size_t kOvertake = 256 * 1024;
constexpr std::size_t kLeast = 4096;

/// Collects the unsent pieces of frames for one sendmsg.
class Gather {
 public:
  explicit Gather(std::size_t skip) : skip_{skip} {}

  void add(const std::byte* data, std::size_t size) {
    const std::size_t skipped = std::min(skip_, size);
    skip_ -= skipped;
    if (size == skipped) return;
    vector_[count_++] = {const_cast<std::byte*>(data + skipped), size - skipped};
    total_ += size - skipped;
  }
  bool full() const { return count_ + 3 > kMaxVector; }
  std::size_t total() const { return total_; }

  ssize_t send(Stream& stream) { return stream.send(std::span{vector_}.first(count_)); }

 private:
  std::array<iovec, kMaxVector> vector_;
  std::size_t count_ = 0;
  std::size_t skip_;
  std::size_t total_ = 0;
};

}  // namespace

// ---- A line of frames ---------------------------------------------------------------------------

/// Tickets grow along a line.
bool SendQueue::Line::has(Ticket ticket) const {
  std::size_t first = 0;
  std::size_t end = count_;
  while (first < end) {
    const std::size_t middle = first + (end - first) / 2;
    if (at(middle).ticket == ticket) return true;
    if (at(middle).ticket < ticket) first = middle + 1;
    if (at(middle).ticket > ticket) end = middle;
  }
  return false;
}

void SendQueue::Line::clear() {
  count_ = 0;
  ring_.clear();
  mask_ = 0;
  head_ = 0;
}

void SendQueue::Line::grow() {
  std::vector<Frame> bigger(std::max(kFirstRing, ring_.size() * 2));
  for (std::size_t i = 0; i < count_; ++i) bigger[i] = std::move(at(i));
  ring_ = std::move(bigger);
  mask_ = ring_.size() - 1;
  head_ = 0;
}

// ---- Both lines ---------------------------------------------------------------------------------

SendQueue::Frame& SendQueue::append(Line& line, const FrameHeader& header) {
  Frame& frame = line.append();
  frame.ticket = ++posted_;
  std::memcpy(frame.bytes.data(), &header, sizeof(header));
  frame.inlined = 0;
  frame.data = {};
  return frame;
}

Ticket SendQueue::push(const FrameHeader& header, ConstBytes data, ConstBytes inlined,
                       FrameOrder order) {
  RTRS_ENSURE(inlined.size() <= QueuePair::kMaxInline);
  const bool small = order == FrameOrder::any && data.size() < kSmall;
  Frame& frame = append(small ? small_ : main_, header);
  frame.data = data;
  frame.inlined = static_cast<std::uint32_t>(inlined.size());
  if (!inlined.empty())  // memcpy from nowhere is undefined even for no bytes
    std::memcpy(frame.bytes.data() + sizeof(header), inlined.data(), inlined.size());
  return posted_;
}

Ticket SendQueue::push_copy(const FrameHeader& header, ConstBytes message) {
  if (message.size() <= QueuePair::kMaxInline) return push(header, {}, message);
  Frame& frame = append(main_, header);
  frame.owned = std::make_unique<std::byte[]>(message.size());
  std::memcpy(frame.owned.get(), message.data(), message.size());
  frame.data = {frame.owned.get(), message.size()};
  return posted_;
}

/// One that was posted earlier always goes first. So what is in the main line, as the question
/// whether the connection lives, comes behind all that was posted before it.
bool SendQueue::is_small_next(const Turn& turn) const {
  if (turn.small == small_.count()) return false;
  if (turn.main == main_.count()) return true;
  return turn.overtaken < kOvertake || small_.at(turn.small).ticket < main_.at(turn.main).ticket;
}

SendQueue::Frame& SendQueue::take(Turn& turn, bool small) {
  if (!small) {
    turn.overtaken = 0;
    return main_.at(turn.main++);
  }
  Frame& frame = small_.at(turn.small++);
  const bool overtakes = turn.main < main_.count() && main_.at(turn.main).ticket < frame.ticket;
  if (overtakes) turn.overtaken += std::max(frame.size(), kLeast);
  return frame;
}

/// The line of all frames; null: there are frames in both.
SendQueue::Line* SendQueue::only_line() {
  if (small_.empty()) return &main_;
  return main_.empty() ? &small_ : nullptr;
}

int SendQueue::send(Stream& stream) {
  if (stream.has_unsent()) {
    if (const int error = stream.flush(); error != 0 || stream.has_unsent()) return error;
  }
  while (!empty()) {
    Gather gather{offset_};
    const auto add = [&gather](const Frame& frame) {
      if (frame.data.empty())
        return gather.add(frame.bytes.data(), sizeof(FrameHeader) + frame.inlined);
      gather.add(frame.bytes.data(), sizeof(FrameHeader));
      gather.add(frame.data.data(), frame.data.size());
      if (frame.inlined > 0) gather.add(frame.bytes.data() + sizeof(FrameHeader), frame.inlined);
    };
    Turn turn{.overtaken = overtaken_};
    if (offset_ == 0) begun_is_small_ = is_small_next(turn);
    if (Line* const line = only_line()) {
      for (std::size_t i = 0; i < line->count() && !gather.full(); ++i) add(line->at(i));
    } else {
      bool small = begun_is_small_;
      for (std::size_t left = main_.count() + small_.count(); left > 0 && !gather.full(); --left) {
        add(take(turn, small));
        small = is_small_next(turn);
      }
    }
    const ssize_t n = gather.send(stream);
    if (n < 0) {
      if (n == -EINTR) continue;
      return n == -EAGAIN ? 0 : static_cast<int>(-n);
    }
    advance(static_cast<std::size_t>(n));
    if (static_cast<std::size_t>(n) < gather.total()) return 0;  // the socket is full
  }
  return 0;
}

std::size_t SendQueue::gather(OneCall& call) {
  if (main_.count() + small_.count() != 1) return 0;
  if (offset_ == 0) begun_is_small_ = main_.empty();
  const Frame& frame = (begun_is_small_ ? small_ : main_).at(0);
  if (frame.size() > OneCall::kMost) return 0;
  std::size_t skip = offset_;
  std::size_t pieces = 0;
  const auto add = [&](ConstBytes piece) {
    const std::size_t skipped = std::min(skip, piece.size());
    skip -= skipped;
    if (piece.size() == skipped) return;
    call.pieces[pieces++] = {const_cast<std::byte*>(piece.data() + skipped),
                             piece.size() - skipped};
  };
  const ConstBytes header = ConstBytes{frame.bytes}.first(sizeof(FrameHeader) + frame.inlined);
  if (frame.data.empty()) {
    add(header);
    return pieces;
  }
  add(header.first(sizeof(FrameHeader)));
  add(frame.data);
  add(header.subspan(sizeof(FrameHeader)));
  return pieces;
}

std::size_t SendQueue::copy(OneCall& call) {
  const std::size_t pieces = gather(call);
  std::size_t bytes = 0;
  for (const iovec& piece : std::span{call.pieces}.first(pieces)) {
    std::memcpy(call.copy.data() + bytes, piece.iov_base, piece.iov_len);
    bytes += piece.iov_len;
  }
  call.pieces[0] = {call.copy.data(), bytes};
  return std::min<std::size_t>(pieces, 1);
}

/// In the order in which they were gathered.
void SendQueue::advance(std::size_t bytes) {
  offset_ += bytes;
  while (!empty()) {
    Line& line = begun_is_small_ ? small_ : main_;
    const std::size_t size = line.at(0).size();
    if (offset_ < size) break;
    offset_ -= size;
    if (only_line() != nullptr) {  // nothing is overtaken
      if (!begun_is_small_) overtaken_ = 0;
      line.pop();
      continue;
    }
    Turn turn{.overtaken = overtaken_};
    take(turn, begun_is_small_);
    overtaken_ = turn.overtaken;
    line.pop();
    begun_is_small_ = is_small_next({.overtaken = overtaken_});
  }
  sent_ = std::max(sent_, posted_ - main_.count() - small_.count());
}

void SendQueue::disown() {
  for (Line* line : {&main_, &small_}) {
    for (std::size_t i = 0; i < line->count(); ++i) disown(line->at(i));
  }
  sent_ = disowned_ = posted_;
}

void SendQueue::disown(ConstBytes memory) {
  disown(main_, memory);
  disown(small_, memory);
}

void SendQueue::disown(Line& line, ConstBytes memory) {
  for (std::size_t i = 0; i < line.count(); ++i) {
    const std::byte* const begin = line.at(i).data.data();
    const bool inside = std::less_equal<>{}(memory.data(), begin) &&
                        std::less<>{}(begin, memory.data() + memory.size());
    if (inside) disown(line.at(i));
  }
}

void SendQueue::disown(Frame& frame) {
  if (frame.data.empty() || frame.owned) return;
  frame.owned = std::make_unique<std::byte[]>(frame.data.size());
  std::memcpy(frame.owned.get(), frame.data.data(), frame.data.size());
  frame.data = {frame.owned.get(), frame.data.size()};
}

void SendQueue::clear() {
  main_.clear();
  small_.clear();
  offset_ = 0;
  sent_ = disowned_ = posted_;
}

}  // namespace rtrs::tcp
