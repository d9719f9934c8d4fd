// SPDX-License-Identifier: BSD-3-Clause
// Runs a mirror: performs the orders of its group, over a session with each member.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/disk.hpp"
#include "bridge/client/mirror/call.hpp"
#include "bridge/client/mirror/group.hpp"
#include "bridge/client/mirror/member_links.hpp"
#include "bridge/client/mirror/member_session.hpp"
#include "bridge/client/mirror/mirror_door.hpp"
#include "bridge/client/mirror/mirror_lane.hpp"
#include "bridge/client/mirror/standing_report.hpp"
#include "bridge/client/write_gate.hpp"

namespace rnbd::mirror {

/// The present state of a member.
struct MemberStatus {
  std::string server;
  Group::Progress progress{};
  std::uint32_t to_copy = 0;  ///< regions, when its resync began
  std::string trouble{};      ///< why it is away; "" = it is not
  SessionStatus session{};
  bool discarded = false;
};

struct MirrorStatus {
  bool live = false;
  std::string trouble;  ///< the reason why it is not
  std::string uri;      ///< of the mirror, with its present servers and its group
  std::uint64_t term = 0;
  std::uint64_t size = 0;  ///< bytes of the disk, once it is known
  std::uint64_t region_bytes = 0;
  std::uint32_t unequal = 0;  ///< regions to be made equal after an unclean end
  std::uint64_t losses = 0;   ///< losses of a member in step
  std::uint64_t returns = 0;  ///< returns of a lost one
  std::vector<MemberStatus> members;
};

/// Owns the sessions with all members, and a thread that passes requests and answers between them
/// and the group. It attaches at the first request, and again after too many members were away.
///
/// Threads: any; leave() when no call is under way.
class Mirror final : public LaneSource,
                     public std::enable_shared_from_this<Mirror>,
                     private GroupHost {
 public:
  Mirror(const ClientConfig& config, rtrs::Log log);
  ~Mirror() override;

  /// Waits until the group is attached. No thread exists before the first call.
  ///
  /// Errors: ETIMEDOUT (too few members within the connect timeout), ESTALE (another client has
  ///         it), EINTR; a sentence with the trouble of each member.
  tl::expected<void, Failure> attach(const Interrupt& interrupt);
  /// Begins to attach and does not wait. Orders are accepted after that.
  void begin();
  /// The geometry of the disk, after attach().
  DeviceGeometry geometry() const;

  /// Performs a read, write, write_zeroes or flush of whole blocks. It does not use the memory
  /// after it has returned. Errors: as Disk.
  int run(const Transfer& transfer, const Interrupt& interrupt);
  /// Requests for whole blocks enter it shared, patches exclusively.
  WriteGate& gate() { return gate_; }

  /// More lanes would not help, because all share one thread.
  unsigned lanes() const override { return 4; }
  std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) override;
  // For a lane: the jobs belong to the mirror until it ends them.
  void take(MirrorLane& lane, const std::vector<rtrs::LaneLoop::Job*>& jobs);
  void give_up(rtrs::LaneLoop::Job& job);

  MirrorStatus status() const;
  // An operator's orders. `server`: a member, as in its status.
  /// While too few members are there, goes on with the content of this one. Newer writes of other
  /// members are lost. Errors: EPERM (without `sure`: a sentence about the consequences), ENOENT,
  /// EALREADY (it is attached), ENXIO (that server is not there).
  tl::expected<void, Failure> force(const std::string& server, bool sure);
  /// Goes on without this member, and does not try to connect to it any more. Errors: ENOENT, EBUSY
  /// (the last one).
  tl::expected<void, Failure> discard(const std::string& server);
  /// Puts a server with an empty disk in the place of a discarded one. Errors: ENOSPC (none was
  /// discarded).
  tl::expected<void, Failure> add(const rtrs::PathAddress& path);
  /// True if another client has taken over the mirror, so that requests get no answer any more.
  bool dead() const;
  /// Ends the mirror cleanly: the next client need not compare members that are equal now.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  using Bytes = std::vector<std::byte>;

  /// An operation that the group began itself.
  struct Own {
    std::shared_ptr<Bytes> memory{};
    Clock::time_point began{};
    std::uint64_t length = 0;  ///< bytes
  };
  struct Member {
    MemberLink* link = nullptr;
    MemberSession session;
    bool lost_power = false;  ///< from the answer to the claim
    bool discarded = false;
    int failure = 0;  ///< errno of the answer that the group is at
  };

  // For the group.
  void send(const Command& command) override;
  void drop(unsigned member) override;
  void attached() override { attached_ = true; }
  void done(std::uint64_t operation) override;
  void failed(std::uint64_t operation, int error) override;
  bool may_copy() override { return !resume_at_; }
  void over() override { over_ = true; }

  // Commands on their way.
  Transfer transfer_for(const Command& command, Task& task);
  void finished(TaskPtr task);
  void claimed(unsigned member, const Claimed& answer);

  // The loop.
  void loop();
  void run_posted();
  void serve();
  void wait();
  bool collect();
  void tick();
  void settle();
  bool may_stop(Clock::time_point now) const;
  void part();
  void rest(const Own& copied);
  void resume();

  // Members.
  void opened(unsigned member, std::unique_ptr<OpenMember> open);
  void begin_group(const OpenMember& open);
  void lost(unsigned member);
  void check_links(Clock::time_point now);
  void choose_nearest();
  void begin_anew();
  void end_for_good();

  // Calls.
  void accept(const CallPtr& call);
  void submit(std::uint64_t id, Call& call);
  void end_all(int error);
  void give_up(const CallPtr& call);
  void give_up(std::uint64_t id, Call& call);
  void free_of(std::uint64_t id, Call& call);

  void report();
  tl::expected<void, Failure> ask(std::function<tl::expected<void, Failure>()> question);
  tl::expected<void, Failure> force_now(unsigned member);
  tl::expected<void, Failure> discard_now(unsigned member);
  const ClientConfig config_;
  WriteGate gate_;
  MirrorDoor door_;
  CallAnswers answers_;
  MemberLinks links_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;  ///< guarded by mutex_, as the next
  bool live_ = false;
  std::string dead_;  ///< the reason why the mirror is dead
  DeviceGeometry geometry_;
  MirrorStatus published_;

  // The thread's own.
  Clock::time_point turn_{};  ///< when the loop last woke up
  std::vector<Member> members_;
  StandingReport report_;
  std::unique_ptr<Group> group_;
  GroupShape shape_;
  std::map<std::uint64_t, CallPtr> calls_;
  std::vector<CallPtr> arriving_;
  std::map<std::uint64_t, Own> own_;
  TaskPool tasks_;
  std::vector<pollfd> polled_;
  std::uint64_t next_call_ = 1;
  std::uint64_t last_term_ = 0;  ///< of the groups before
  bool attached_ = false;        ///< reported by the group, until settle()
  bool over_ = false;
  bool superseded_ = false;
  bool lossy_ = false;  ///< all members lost power, so the next flush fails
  std::optional<Clock::time_point> stop_by_;
  Clock::time_point not_live_since_{};
  Clock::time_point next_tick_{};
  Clock::time_point next_cool_{};
  Clock::time_point last_request_{};
  std::optional<Clock::time_point> resume_at_;  ///< copies pause until then
  bool forced_ = false;
  std::thread thread_;
};

}  // namespace rnbd::mirror
