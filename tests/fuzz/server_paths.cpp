// SPDX-License-Identifier: BSD-3-Clause
// Input: whether the client numbers its requests (1), then a script of what happens to a session
// with several paths, one step after another:
//   0                                                        a path joins
//   1 path (1)                                               a path closes
//   2 path (1), permit (1), generation (1), flags (1), text (1)    a write
//   3 path (1), permit (1)                                   a read
//   4 error (1)                                              the oldest request ends
//   5 path (1)                                               a goodbye
//   6                                                        nobody came back in time
//   7 access (1)                                             the server thinks otherwise of all
//   8 path (1), access (1)                                   an answer to an access notice
//   9                                                        all paths have been read
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/queue_pair.hpp"

using namespace rtrs;

namespace {

constexpr std::uint16_t kDepth = 2;
constexpr std::uint32_t kMaxIo = 512;
constexpr std::uint32_t kChunk = kMaxIo + 512;
constexpr std::size_t kMaxPaths = 16;  ///< in one run

/// Counts the answers for each chunk.
class FakeQueuePair final : public fuzz::SilentQueuePair {
 public:
  std::array<unsigned, kDepth> replies{};
  unsigned notices = 0;  ///< less those that were answered

  Ticket write_with_immediate(RemoteMemory, ConstBytes, ConstBytes, std::uint32_t value) override {
    if (wire::type_of(value) == wire::ImmediateType::io_response) {
      ++replies.at(wire::decode_response(value).buffer_id);
    }
    if (wire::type_of(value) == wire::ImmediateType::access) {
      fuzz::require(++notices == 1, "one access notice at a time");
    }
    return 1;
  }
};

class Handler final : public ServerHandler {
 public:
  std::deque<ServerRequest*> running;
  unsigned ups = 0;
  unsigned downs = 0;

  void* on_session_up(ServerSession&) override {
    ++ups;
    return nullptr;
  }
  void on_session_down(ServerSession&) override {
    fuzz::require(running.empty(), "a session is down when nothing executes");
    ++downs;
  }
  void on_request(ServerSession&, ServerRequest& request) override {
    fuzz::require(ups == 1 && downs == 0, "requests come while the session is up");
    for (const ServerRequest* other : running) {
      const bool twice = other->buffer_id == request.buffer_id && !other->is_read;
      fuzz::require(!twice || request.is_read, "one write of a permit executes at a time");
      fuzz::require(other->data.data() != request.data.data(), "no two requests share a chunk");
    }
    running.push_back(&request);
  }
  void finish_oldest(int error) {
    ServerRequest* request = running.front();
    running.pop_front();
    request->finish(error);
  }
};

/// A path of one connection and the driver that closes it when told to.
struct Path final : ServerPathOwner {
  explicit Path(ServerSession& s) : session{s}, path{s, *this, {.cid_count = 1}} {
    connection = &path.add(0, queue_pair);
    const auto hello = wire::encode_info_request("fuzz");
    fuzz::require(connection->on_message(wire::bytes_of(hello), {}) == nullptr, "it connects");
  }
  PathRefusal admit(std::string_view) override { return {}; }
  bool provide_chunks() override {
    path.set_chunks(memory);
    return true;
  }
  void on_connected() override {}
  void on_fenced(Complaint, bool) override { session.on_path_closed(path); }
  void on_unused(std::span<const MutableBytes>, std::uint64_t) override {}
  void on_gone() override {
    fuzz::require(!std::exchange(gone, true), "a path goes once");
    // The sanitizer finds any use from now on.
    std::vector<std::byte>{}.swap(memory);
  }
  void delay_answer(ServerRequest& request, int error) override { session.answer(request, error); }
  bool live() const { return path.state() == ServerPathState::connected; }
  void close() {
    if (!live()) return;
    path.close();
    session.on_path_closed(path);
  }
  void tell(std::uint32_t immediate) {
    if (live() && connection->on_write_with_immediate(immediate, 0) != nullptr) close();
  }
  void request(std::uint32_t permit, std::uint32_t length, ConstBytes bytes, std::uint32_t user) {
    if (!live()) return;
    std::memcpy(memory.data() + permit * kChunk + length, bytes.data(), bytes.size());
    tell(encode(wire::RequestImmediate{permit, length + user}, kDepth));
  }

  ServerSession& session;
  ServerPath path;
  FakeQueuePair queue_pair;
  QueuePairHandler* connection = nullptr;
  std::vector<std::byte> memory = std::vector<std::byte>(kDepth * std::size_t{kChunk});
  bool gone = false;
};

class Script final : ServerSessionOwner {
 public:
  explicit Script(bool numbered)
      : session_{options(numbered), handler_, *this}, numbered_{numbered} {}
  void on_lingering() override {}
  void on_gone() override { ++gone_; }

  void step(fuzz::Input& input) {
    switch (input.take<std::uint8_t>() % 10) {
      case 0:
        if (paths_.size() < kMaxPaths && !session_.over()) {
          paths_.push_back(std::make_unique<Path>(session_));
        }
        return;
      case 1:
        if (Path* path = pick(input)) path->close();
        return;
      case 2:
        return write(input);
      case 3:
        return read(input);
      case 4: {
        const int error = input.take<std::uint8_t>();
        if (!handler_.running.empty()) handler_.finish_oldest(error);
        return;
      }
      case 5:
        if (Path* path = pick(input)) path->tell(wire::kGoodbye);
        return;
      case 6:
        if (!session_.has_live_path()) session_.on_linger_expired();
        return;
      case 7:
        return session_.set_access(0, wire::PathAccess{take_access(input)});
      case 8:
        return answer_notice(input);
      default:
        return session_.judge_pending();
    }
  }

  void finish() {
    for (const auto& path : paths_) path->close();
    while (!handler_.running.empty()) handler_.finish_oldest(0);
    session_.end();
    fuzz::require(session_.gone() && gone_ == 1, "the session ends once");
    fuzz::require(handler_.downs == handler_.ups, "the handler learns of both");
    for (const auto& path : paths_) fuzz::require(path->gone, "all paths are gone with it");
  }

 private:
  static ServerSessionOptions options(bool numbered) {
    return {.queue_depth = kDepth,
            .max_io_size = kMaxIo,
            .max_header_size = kChunk - kMaxIo,
            .extension = numbered,
            .features = numbered ? wire::kFeatureExactlyOnce | wire::kFeatureAccessNotice : 0U};
  }
  Path* pick(fuzz::Input& input) {
    const std::size_t which = input.take<std::uint8_t>();
    return paths_.empty() ? nullptr : paths_[which % paths_.size()].get();
  }
  static std::uint8_t take_access(fuzz::Input& input) {
    return static_cast<std::uint8_t>(input.take<std::uint8_t>() % 3);
  }
  void answer_notice(fuzz::Input& input) {
    Path* path = pick(input);
    const wire::PathAccess access{take_access(input)};
    if (path == nullptr) return;
    // Counted down first: the next one may leave at once.
    const unsigned owed = std::exchange(path->queue_pair.notices, 0U);
    const bool lived = path->live();
    path->tell(wire::access_immediate(access));
    const bool right = owed == 1 || !numbered_;
    fuzz::require(right || !lived || !path->live(), "an answer to nothing ends the path");
  }
  void write(fuzz::Input& input) {
    Path* path = pick(input);
    const std::uint32_t permit = input.take<std::uint8_t>() % kDepth;
    const wire::WriteTrailer trailer{.generation = input.take<std::uint8_t>(),
                                     .flags = input.take<std::uint8_t>()};
    std::vector<std::byte> bytes{input.take<std::byte>()};
    const auto append = [&](ConstBytes more) {
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    if (numbered_) append(wire::bytes_of(trailer));
    const auto user = static_cast<std::uint16_t>(bytes.size());
    append(wire::bytes_of(wire::WriteHeader{.type = 2, .user_length = user}));
    if (path == nullptr) return;
    const std::size_t before = handler_.running.size();
    path->request(permit, 64, bytes, user);
    const bool begun = handler_.running.size() > before;
    if (!begun || !numbered_) return;
    const bool first = carried_out_.insert({permit, trailer.generation}).second;
    fuzz::require(first, "a generation of a permit is carried out once");
  }
  void read(fuzz::Input& input) {
    Path* path = pick(input);
    const std::uint32_t permit = input.take<std::uint8_t>() % kDepth;
    std::vector<std::byte> bytes{std::byte{'r'}};
    const auto append = [&](ConstBytes more) {
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    append(wire::bytes_of(wire::ReadHeader{.type = 3, .user_length = 1, .descriptor_count = 1}));
    append(wire::bytes_of(wire::Descriptor{.address = 0, .key = 1, .length = 64}));
    if (path != nullptr) path->request(permit, 64, bytes, 1);
  }

  Handler handler_;
  ServerSession session_;
  bool numbered_;
  std::vector<std::unique_ptr<Path>> paths_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> carried_out_;
  unsigned gone_ = 0;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  Script script{(input.take<std::uint8_t>() & 1) != 0};
  while (!input.rest().empty()) script.step(input);
  script.finish();
  return 0;
}
