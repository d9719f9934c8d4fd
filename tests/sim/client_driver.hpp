// SPDX-License-Identifier: BSD-3-Clause
// One session of a simulated client: performs the actions of ClientMachine as
// rdma/transport/client/driver.hpp does with sockets and threads.
#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client/machine.hpp"
#include "tests/sim/heartbeat_watch.hpp"
#include "tests/sim/latency_watch.hpp"
#include "tests/sim/network.hpp"
#include "tests/sim/path_watch.hpp"
#include "tests/sim/sim_queue_pair.hpp"

namespace sim {

/// By the wire: no requests for now.
inline constexpr std::uint32_t kInaccessible = 2;

class ClientDriver {
 public:
  struct Setup {
    const Knobs& knobs;
    const ClientKnobs& client;
    NodeId node = 0;
    NodeId server = 0;
    std::uint64_t server_id = 0;  ///< 0 = not known
    std::string session_name;
    rtrs::RecoveryHandler* recovery = nullptr;  ///< null: leaves when the server has forgotten it
    /// Whether the client must see now that a clone of the server is not the server.
    std::function<bool()> knows_clone;
  };
  /// Index of a lane; 0 is the control lane.
  using LaneIndex = std::size_t;

  ClientDriver(World& world, Network& network, const Setup& setup);
  ClientDriver(const ClientDriver&) = delete;
  ClientDriver& operator=(const ClientDriver&) = delete;

  std::function<void()> on_up;
  /// The session is over; everything that was submitted has ended. The driver may be destroyed
  /// from a later event.
  std::function<void()> on_down;

  void start();
  /// The client leaves in an orderly way, or its process is killed.
  void shut_down(bool orderly);
  /// Somebody adds a path to the session, or removes one.
  void change_paths();
  /// Requests can be submitted, although nobody may answer any more.
  bool up() const { return up_ && !closed_; }
  /// Requests end with EIO at the moment, because no path has come for too long.
  bool gave_up() const {
    return gave_up_ || unresolved_.refusal() != 0 || control_unresolved_.refusal() != 0;
  }
  /// A change that was given up, or a CLOSE, may still be carried out.
  bool holds_opens_back() const { return control_unresolved_.writes(); }
  /// Paths lost so far: copies of what was sent over them may come late.
  unsigned losses() const { return losses_; }
  /// How often it came to that.
  unsigned give_ups() const { return give_ups_; }
  /// The server may carry out again what is sent again.
  bool may_repeat() const {
    if (setup_.client.resends_at_once) return true;
    return setup_.client.survives &&
           (session_.accepted().extension.features & rtrs::wire::kFeatureExactlyOnce) == 0;
  }
  std::uint64_t serial() const { return serial_; }
  rtrs::SessionLimits limits() const;
  std::uint64_t server_id() const { return session_.server_id(); }
  /// The newest attempt to renew the session is one at a clone of the server.
  bool renews_elsewhere() const { return renews_elsewhere_; }

  /// Where messages that are no I/O go.
  LaneIndex control_lane() const { return lanes_[0]->permits().count() > 0 ? 0 : 1; }
  LaneIndex lanes() const { return lanes_.size(); }
  rtrs::ClientLane& lane(LaneIndex i) { return *lanes_[i]; }
  /// Starts an operation whose end is waited for; end_wait() when it has come.
  void start(rtrs::Operation& operation, LaneIndex i);
  void cancel(rtrs::Operation& operation, LaneIndex i);
  void end_wait(LaneIndex i) { --waiters_[i]; }
  unsigned permits_in_use() const;
  /// Free ones, for which a path that their request has left owes an answer.
  unsigned permits_owing() const;
  /// A request of then has no end yet. `bytes`: of its data, which the client sends if it `writes`;
  /// 0 if nothing can be said of it.
  void check_wait(Instant asked, bool writes, std::size_t bytes) const;
  /// Likewise, of what has been sent.
  void check_latency() const;

 private:
  struct Link {
    std::shared_ptr<Wire> wire;
    std::unique_ptr<SimQueuePair> queue_pair;
    bool progress_due = false;
  };
  /// A request that was sent while a lane looked at its race.
  struct SentInRace {
    unsigned path = 0;
    std::uint32_t permit = 0;
    bool owes = false;     ///< an answer is due on another path
    unsigned been_on = 0;  ///< paths
  };
  struct Path {
    unsigned generation = 0;  ///< the machine's; events of an earlier one are ignored
    unsigned step = 0;        ///< of connecting
    bool open = false;
    bool impostor = false;   ///< all its connections prove to be somebody else's
    bool hijacked = false;   ///< it leads to another server, this time
    bool elsewhere = false;  ///< it leads to another server
    bool refused = false;    ///< the client knows that, and may not go on there
    bool ready = false;      ///< the infos have been exchanged
    unsigned access = 0;     ///< by the newest words of the server
    bool tells_access = false;
    bool forbidden = false;  ///< by the newest words of the server that were acted on
    bool noticed = false;    ///< its notice is not acknowledged yet
    std::vector<Link> links;
    std::optional<HeartbeatWatch> watch;
    std::vector<std::uint64_t> seen;  ///< arrivals per lane at the last tick
    Instant control_heard{};          ///< when something came on connection 0 last
  };

  /// A new session that is being filled.
  struct Renewal {
    unsigned path = 0;
    bool broken = false;
    std::unique_ptr<rtrs::ClientLane> lane;
    std::unique_ptr<rtrs::Operation> operation;
  };

  static rtrs::ClientSessionOptions::Path path_options(const Setup& setup, Rng& rng);
  bool draw_elsewhere();
  static rtrs::ClientSessionOptions session_options(const Setup& setup, Rng& rng);
  void look();
  void schedule_look();
  void feed(const rtrs::ClientEvent& event);
  void perform_all();
  void perform(const rtrs::ClientAction& action);
  void perform_on_lanes(const rtrs::ClientAction& action);
  void connect(unsigned path, unsigned generation);
  void connect_next(unsigned path);
  void start_proof(unsigned path, std::uint16_t cid);
  bool draw_impostor();
  void proved(unsigned path, std::size_t cid, SimQueuePair::Status status);
  void requested(unsigned path, std::uint16_t cid, std::uint32_t immediate);
  void answered(unsigned path, std::uint16_t cid, rtrs::ConstBytes record);
  void ready(unsigned path);
  bool may_be_welcome() const;
  void check_foreign(unsigned path);
  void judge_refused(unsigned path);
  void attach(unsigned path);
  void came_up();
  void create_lanes(unsigned path);
  void schedule_progress(unsigned path, std::size_t cid);
  void progress(unsigned path, std::size_t cid);
  void schedule_tick(unsigned path);
  void tick(unsigned path);
  void lose(unsigned path, const char* why, const rtrs::Cause& cause = {EIO, "lost"});
  void drop(unsigned path, const rtrs::Cause& cause);
  void judge_distrust(unsigned path);
  void close_path(unsigned path);
  void fail(const char* why);
  void close();
  // client_paths.cpp
  bool is_bound(unsigned path) const;
  // client_renewal.cpp
  void recover(unsigned path);
  void recovered();
  bool exactly_once() const;
  std::optional<Instant> healthy_since() const;
  std::optional<Instant> blocked_since(bool writes, std::size_t bytes) const;
  // client_races.cpp
  void schedule_races();
  void run_races();
  bool receive_all(LaneIndex i);
  void judge_silence(unsigned path, LaneIndex i, bool is);
  void judge_bytes(const Wire& wire, Instant since);
  void judge_race(LaneIndex i, unsigned before, const rtrs::Raced& raced);
  void judge_move(LaneIndex i, const SentInRace& sent);
  bool races() const;
  // client_access.cpp
  void note_accept(unsigned path, rtrs::ConstBytes record);
  void look_for_notice(unsigned path);
  void forbid_requests(unsigned path);
  void acknowledge(unsigned index);
  void allow(unsigned path);
  void end_giving_up();
  void fail_waiting();
  void fail_writes(unsigned path);
  void check_control(unsigned path, unsigned misses_max);
  bool probe(unsigned path);
  void give_up(LaneIndex i, const std::function<void(rtrs::ClientLane&)>& what);
  void fail_overdue();
  void check_overdue() const;
  bool is_in_the_way(unsigned path) const;
  bool silenced(unsigned path) const;
  /// Runs `action` later, unless the path has died until then.
  void later(unsigned path, Duration delay, std::function<void()> action);
  std::string who() const { return "client, session " + std::to_string(serial_); }

  World& world_;
  Network& network_;
  Setup setup_;
  std::uint64_t serial_;
  Scope scope_;
  KeySource keys_;
  rtrs::ClientSessionOptions options_;
  rtrs::ClientMachine machine_;
  rtrs::ClientSession& session_;  ///< the machine's
  bool performing_ = false;       ///< an action: those that it leads to are performed behind it
  bool in_the_way_ = false;       ///< of the path that is being lost
  bool owed_requests_ = false;    ///< that path, answers to them
  PathWatch path_watch_;
  LatencyWatch latency_watch_;
  std::vector<Path> paths_;
  std::unique_ptr<Renewal> renewal_;
  bool renews_elsewhere_ = false;
  rtrs::Unresolved unresolved_;
  rtrs::Unresolved control_unresolved_;
  std::vector<std::unique_ptr<rtrs::ClientLane>> lanes_;
  std::vector<unsigned> waiters_;  ///< by lane
  std::vector<unsigned> silent_;   ///< paths, by lane
  /// Path and lane of connections that are silent now.
  std::map<std::pair<unsigned, LaneIndex>, Instant> silent_since_;
  bool in_race_ = false;  ///< a lane looks at its race
  std::vector<SentInRace> sent_in_race_;
  /// By permit: the paths that its request has been on, and perhaps some more.
  std::map<std::uint32_t, unsigned> been_on_;
  /// Requests without an answer: path and permit, of lanes of I/O.
  std::set<std::pair<unsigned, std::uint32_t>> copies_;
  std::map<std::string, rtrs::auth::Digest> secrets_;  ///< by user
  unsigned impostors_ = 0;                             ///< connections or paths of them so far
  std::vector<Link> graveyard_;  ///< queue pairs that may still be on the stack
  unsigned looks_ = 0;
  Instant look_at_ = Instant::max();  ///< when the next one is
  bool up_ = false;
  bool gave_up_ = false;
  unsigned give_ups_ = 0;
  Instant lost_at_{};  ///< some path
  unsigned losses_ = 0;
  bool failing_ = false;
  bool closed_ = false;
};

}  // namespace sim
