// SPDX-License-Identifier: BSD-3-Clause
// The executor of a mirror's group: performs its commands over a session with each member.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/mirror/background_copies.hpp"
#include "bridge/client/mirror/call_table.hpp"
#include "bridge/client/mirror/disk_failures.hpp"
#include "bridge/client/mirror/group.hpp"
#include "bridge/client/mirror/member_links.hpp"
#include "bridge/client/mirror/member_session.hpp"
#include "bridge/client/mirror/mirror_status.hpp"
#include "bridge/client/mirror/record_terms.hpp"
#include "bridge/client/mirror/resync_pace.hpp"
#include "bridge/client/mirror/standing_report.hpp"
#include "bridge/client/mirror/task_sender.hpp"
#include "bridge/client/mirror/vote_pause.hpp"

namespace rnbd::mirror {

/// Tells a view of this client from one of another client that has taken the mirror over.
///
/// Threads: one; pure.
class OwnTerms {
 public:
  /// A view of this term is on its way to members. Some may record it, though it never is in force.
  void proposed(std::uint64_t term) {
    if (proposed_.empty() || proposed_.back() != term) proposed_.push_back(term);
  }
  /// All members of a view of this term have recorded it, so users are served.
  void in_force(std::uint64_t term) {
    in_force_ = std::max(in_force_, term);
    std::erase_if(proposed_, [this](std::uint64_t earlier) { return earlier <= in_force_; });
  }
  std::uint64_t in_force() const { return in_force_; }
  /// True if another client's users may have been served since this one's were. Views from before
  /// this client's first one are no reason.
  bool superseded_by(std::uint64_t term) const {
    return in_force_ != 0 && term > in_force_ &&
           std::ranges::find(proposed_, term) == proposed_.end();
  }

 private:
  std::uint64_t in_force_ = 0;  ///< the newest one; 0: none was yet
  std::vector<std::uint64_t> proposed_;
};

/// Passes requests and answers between the users, the group and the members. Makes a group when the
/// first member is there, and a new one after too many members were away.
///
/// One mutex keeps all of it. A thread with requests takes it for a turn: it begins the requests
/// and takes in the answers to commands that it carries. Then it sends the commands that have
/// become due by that, without the mutex. An operation's commands are carried by the thread of its
/// user. The others are the steward's, which runs loop(): views, copies, and requests of threads
/// that wait.
///
/// Threads: as said below.
///
/// An exception in a turn or a request ends the program, as when memory runs out. Half a turn would
/// leave users without an answer, and a request whose user is gone.
class GroupDriver final : private GroupHost {
 public:
  using Done = tl::expected<void, Failure>;
  using Dissolved = tl::expected<std::string, Failure>;  ///< the URI of the disk

  /// `links` must outlive the driver.
  GroupDriver(const ClientConfig& config, MemberLinks& links, rtrs::Log log);

  /// Handles all events of the mirror; returns some time after stop().
  ///
  /// Threads: the steward's.
  void loop();

  // Any thread.
  /// A turn of the thread that has this sender. `begin` and `end` run with the mutex.
  template <class Begin, class End>
  void turn(TaskSender& sender, const Begin& begin, const End& end) noexcept {
    const std::lock_guard lock{mutex_};
    begin_turn(sender);
    begin();
    serve(sender);
    prepare(sender);
    end();
    sender.end_turn();
  }
  /// Runs a function with the mutex.
  template <class Function>
  auto locked(const Function& function) noexcept {
    const std::lock_guard lock{mutex_};
    turn_ = Clock::now();
    const Finish finish{*this};
    return function();
  }
  /// Performs a request, or a question for `extents`, and waits for its end. The memory is not used
  /// any more when it returns.
  int run(const Transfer& transfer, std::vector<wire::Extent>* extents,
          const rtrs::Interrupt& interrupt) noexcept;
  enum class Wait : std::uint8_t { live, dead, late, interrupted };
  /// Waits until the mirror is attached, or dead.
  Wait wait(std::chrono::steady_clock::time_point until, const rtrs::Interrupt& interrupt);
  /// Of the disk, once the mirror has been attached.
  DeviceGeometry geometry() const;
  /// The reason why the mirror can never be attached again; "" = it can.
  std::string dead() const;
  /// True if that is because an operator has dissolved it.
  bool dissolved() const;
  /// Without what the links know. Its trouble is dead().
  MirrorStatus status();
  void add(TaskSender& sender);
  /// The steward goes on with it, until the members have answered all that was sent. A change that
  /// was cancelled and sent anew would be done twice, and others would wait for both.
  void remove(std::unique_ptr<TaskSender> sender) noexcept;
  std::size_t members() const { return members_.size(); }

  // With the mutex.
  Call& make_call(CallUser& user, TaskSender& sender) { return calls_.make(user, sender); }
  /// Begins a user's request; without an attached group it waits for one.
  void accept(Call& call);
  /// A user leaves its request, see CallTable.
  void cancel(const rtrs::LaneLoop::Job& job) { calls_.cancel(job, live_group()); }
  /// Ends the users' requests. loop() returns when no region is in an activity log, after 2 s at
  /// most.
  void stop();
  /// A member's link has opened its device.
  void opened(unsigned member, std::shared_ptr<OpenMember> open);
  bool fits_others(unsigned member, const std::shared_ptr<OpenMember>& open);
  void send_vote_away();
  // An operator's orders, see Mirror.
  /// `known`: for what people are told. The links wait for sessions, so it is asked for without the
  /// mutex.
  Done force(const std::string& server, bool sure, bool split, const MirrorStatus& known);
  Done discard(const std::string& server);
  Done add(const rtrs::PathAddress& path, bool overwrite);
  Done verify(const std::string& from);
  Done end_verify();
  /// Begins to end the mirror, so that this server has a disk of its own; `then` is called once, in
  /// this thread.
  void dissolve(const std::string& server, std::function<void(Dissolved)> then);

 private:
  using Clock = std::chrono::steady_clock;

  struct Member {
    MemberLink* link = nullptr;
    bool is_vote = false;
    MemberSession session;
    bool has_disk = false;      ///< this session was granted a claim, and no later one was refused
    bool lost_power = false;    ///< by its answer to the claim, unflushed writes may be gone
    bool discarded = false;     ///< by an operator
    bool hangs = false;         ///< it has not answered for so long that people are told
    bool overwrite = false;     ///< an operator allows to replace the content of its disk
    Clock::time_point shown{};  ///< it has carried out an order that was sent then
    int failure = 0;            ///< errno of its newest answer in this session that was an error
    bool bad_disk = false;      ///< that was the answer to a read, a change or a flush
    DiskFailures disk_failures;
    VotePause vote_pause;
    ResyncPace pace;
  };
  /// The newest event of the group that settle() must handle. `over` and `doubted` make earlier
  /// ones void.
  enum class News : std::uint8_t {
    none,
    attached,
    over,
    doubted,  ///< while it attaches: its term shuts a member out, and may come from damage
  };

  // GroupHost, called by the group.
  void send(const Command& command) override;
  void drop(unsigned member) override;
  void attached() override { news_ = News::attached; }
  void done(std::uint64_t operation) override;
  void failed(std::uint64_t operation, int error) override;
  MemberSet same(std::uint64_t operation, MemberSet members, unsigned source) override {
    return copies_.same(operation, members, source);
  }
  void differs(const Difference& found) override;
  void grown() override;
  void not_grown(unsigned member, int error) override;
  void dissolved(int error) override {
    if (leaving_) leaving_->outcome = error;
  }
  bool may_copy(unsigned under_way) override {
    return copies_.may_begin(under_way, !calls_.empty(), Clock::now());
  }
  bool has_requests() override { return copies_.are_requests(!calls_.empty(), Clock::now()); }
  MemberSet leased() override;
  bool leases_ended() override { return Clock::now() - claimed_at_ >= kReadLeaseEnd; }
  void over() override;
  void superseded() override { superseded_ = forced_elsewhere_ = true; }

  // Turns.
  struct Finish {
    GroupDriver& driver;
    ~Finish() { driver.finish(); }
  };
  void begin_turn(TaskSender& sender);
  void serve(TaskSender& sender);
  void part_with_ended(TaskSender& sender);
  void prepare(TaskSender& sender);
  void finish();

  // Commands on their way.
  TaskSender& carrier_of(const Call* call, unsigned member);
  void finished(MemberLane& lane, TaskPtr task);
  void claimed(unsigned member, const Claimed& answer);
  void judge(unsigned member, Answer& answer);
  void shut_out(unsigned member);
  void found_dissolved(unsigned member);
  void tell_of_disk(unsigned member);
  void lose_holders(std::uint64_t operation);

  /// An operator has the mirror end. Requests that come meanwhile wait, and fail with it.
  struct Leaving {
    Leaving(unsigned stays, std::function<void(Dissolved)> answer)
        : member{stays}, then{std::move(answer)} {}

    unsigned member;             ///< that stays
    bool begun = false;          ///< the group knows
    std::optional<int> outcome;  ///< as the group has told
    std::function<void(Dissolved)> then;
  };

  // The loop.
  using Lock = std::unique_lock<std::mutex>;
  /// Calls a function for each sender that the steward has.
  template <class Function>
  void for_own(const Function& function) {
    function(steward_);
    for (const auto& sender : inherited_) function(*sender);
  }
  void wait(Lock& lock);
  void inherit();
  void bury();
  void look_at_sessions(Lock& lock);
  void tick();
  void settle();
  void go_live();
  bool may_stop(Clock::time_point now) const;
  void part(Lock& lock);
  MirrorStatus report();
  void report_verify();
  void try_to_dissolve();
  void take_outcome();
  void end_dissolve(const Failure& failure);

  // Members.
  /// Null while there is none, or while it does not take requests.
  Group* live_group() const;
  void begin_with(const DeviceGeometry& geometry);
  void begin_group();
  void follow_size();
  void follow_regions(unsigned shift);
  void look_at_rooms(Clock::time_point now);
  void check_growth(Clock::time_point now);
  void learn_zeroing();
  void tell_abilities();
  void lost(unsigned member);
  std::shared_ptr<OpenMember> end_session(unsigned member);
  Clock::time_point oldest(unsigned member, Clock::time_point now);
  Clock::duration wait_after_failure(unsigned member);
  bool is_in_doubt() const;
  void check_vote(unsigned member, Clock::time_point now);
  void check_hanging(unsigned member, Clock::time_point now);
  void check_links(Clock::time_point now);
  void choose_nearest();
  void begin_anew();
  void begin_without_doubt();
  void end_for_good();

  const ClientConfig& config_;
  MemberLinks& links_;
  std::vector<Member> members_;
  StandingReport report_;
  VerifyStatus verify_;
  std::optional<Leaving> leaving_;
  std::string dissolved_into_;  ///< the URI of the disk; "": it is a mirror
  ResyncPace verify_pace_;
  std::unique_ptr<Group> group_;
  GroupShape shape_;
  News news_ = News::none;
  OwnTerms own_terms_;
  RecordTerms record_terms_;
  bool was_live_ = false;          ///< an earlier group
  bool superseded_ = false;        ///< another client has taken the mirror over
  bool forced_elsewhere_ = false;  ///< an operator had it do so
  bool forced_ = false;            ///< an operator chose the member with the content
  bool lossy_ = false;             ///< answered writes may be lost, so the next flush fails

  DeviceGeometry geometry_;  ///< of the first group; its size and abilities, of the newest one
  std::optional<unsigned> region_shift_;  ///< as records say; none: by the size
  std::string dead_;                      ///< see dead()

  mutable std::mutex mutex_;
  std::condition_variable changed_;  ///< it has become live, or dead
  TaskSender steward_;
  std::vector<TaskSender*> senders_;               ///< the steward's, and those of lanes
  std::vector<std::unique_ptr<TaskSender>> left_;  ///< lanes have ended, the steward has not looked
  std::vector<std::unique_ptr<TaskSender>> inherited_;  ///< of these; the steward's own
  CallTable calls_;
  BackgroundCopies copies_;
  TaskPool tasks_;
  std::vector<Task*> ended_;                  ///< in this turn
  std::vector<TaskPtr> gone_;                 ///< likewise
  std::vector<pollfd> polled_;                ///< the steward's
  std::vector<std::size_t> places_;           ///< in it, of each of its senders
  Clock::time_point turn_{};                  ///< when it began
  std::optional<Clock::time_point> stop_by_;  ///< after stop(): the latest end of loop()
  Clock::time_point not_live_since_{};
  Clock::time_point claimed_at_{};  ///< the newest claim with which a session got a disk
  Clock::time_point next_tick_{};
  Clock::time_point next_cool_{};
  Clock::time_point next_look_at_rooms_{};
  Clock::time_point no_growth_{};  ///< no request waited for one then
  std::string why_not_grown_;      ///< at the last attempt, which failed; "": there was none
};

}  // namespace rnbd::mirror
