// SPDX-License-Identifier: BSD-3-Clause
// Members and clients of a mirror group in a simulated world, and what goes wrong there.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/client/mirror/group.hpp"
#include "bridge/client/mirror/memory_use.hpp"
#include "bridge/server/mirror/member.hpp"
#include "tests/sim/mirror/mirror_ledger.hpp"
#include "tests/sim/rng.hpp"

namespace sim {

using Values = std::vector<std::uint64_t>;                    ///< one for each sector
inline constexpr std::uint64_t kNothing = ~std::uint64_t{0};  ///< content of an empty disk
inline constexpr std::uint64_t kForeign = kNothing - 1;       ///< data of others
inline constexpr std::uint64_t kZeroes = kForeign - 1;        ///< extents: it reads as zeroes
inline constexpr std::uint64_t kUnknown = kForeign - 2;       ///< extents: it reads as anything
inline constexpr std::uint64_t kRotten = kForeign - 3;        ///< what nobody has written
inline constexpr unsigned kSceneSteps = 3000;                 ///< at most, of a scene
/// Of a client that is not of this world.
inline constexpr std::uint64_t kLoneSession = ~std::uint64_t{0};
/// The disk of a group when it begins, and at most.
inline constexpr std::uint64_t kSectors = 11, kMostSectors = 19;
inline constexpr std::uint64_t kSectorBytes = 512;
/// The time of the world, which passes in some steps only. The rules compare nothing else with it.
inline constexpr std::uint64_t kLease = 4, kLeaseEnd = 5;

/// An empty disk reads as zeroes.
inline bool is_hole(std::uint64_t value) { return value == 0 || value == kNothing; }

/// A rule is broken.
struct MirrorViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The values that each sector may show.
class MirrorChecker {
 public:
  MirrorChecker() : possible_(kMostSectors, {0}), lasting_(kMostSectors, {0}) {}

  void begin(unsigned client, std::uint64_t operation, mirror::Range range, std::uint64_t value);
  void begin_flush(unsigned client, std::uint64_t operation);
  void begin_read(unsigned client, std::uint64_t operation);
  void flushed(unsigned client, std::uint64_t operation);
  /// All members lost their power, and the clients theirs.
  void blackout();
  /// A client's first view is recorded: those before it never end anything again.
  void attached(unsigned client);
  void wrote(unsigned client, std::uint64_t operation);
  /// It has failed. Each sector may have its value or not.
  void gave_up(unsigned client, std::uint64_t operation);
  /// An operator decides for this content, whatever else there is. A blackout may leave the durable
  /// part of it.
  void forced(const Values& content, const Values& durable);
  /// The newest client shows so many sectors. `found`: the values that the new ones may have.
  void sized(std::uint64_t sectors, const std::vector<std::set<std::uint64_t>>& found);
  std::uint64_t sectors() const { return sectors_; }
  /// One that was submitted while its client was the newest one may show what was there until the
  /// next one came. Extents are checked likewise, where they say that zeroes are read.
  void read(unsigned client, std::uint64_t operation, mirror::Range range, const Values& seen);
  void at_end(std::uint64_t sector, std::uint64_t value) const;
  std::uint64_t operations() const { return operations_; }
  unsigned newest() const { return newest_; }

 private:
  struct Write {
    mirror::Range range;
    std::uint64_t value = 0;
  };
  using Possible = std::vector<std::set<std::uint64_t>>;  ///< values, one set for each sector
  struct Read {
    bool served = false;  ///< its client was the newest one since it was submitted
    Possible before;      ///< the values when the next client came; none: no other one has come
    /// Sectors that a later client changes. Its zeroes look like those of a change of before.
    std::set<std::uint64_t> changed;
  };
  void not_superseded(unsigned client) const;
  void supersede_reads(unsigned client);
  void change_beside_reads(unsigned client, mirror::Range range);
  bool read_before(unsigned client, std::uint64_t operation, mirror::Range range,
                   const Values& seen);

  Possible possible_;
  Possible lasting_;                  ///< after a blackout
  std::uint64_t sectors_ = kSectors;  ///< that users have seen
  std::map<std::pair<unsigned, std::uint64_t>, Possible> flushes_;
  std::map<std::pair<unsigned, std::uint64_t>, Write> under_way_;
  std::map<std::pair<unsigned, std::uint64_t>, Read> reads_;
  unsigned newest_ = 0;
  std::uint64_t operations_ = 0;
};

class MirrorWorld;

/// One life of a client: a group, its sessions and the memory of its requests.
class MirrorClient final : public mirror::GroupHost {
 public:
  /// `names`: the server of each member, by its place in the world. Scenes may ask for one more.
  MirrorClient(MirrorWorld& world, unsigned number, const mirror::GroupOptions& options,
               std::vector<unsigned> names);

  void send(const mirror::Command& command) override;
  void drop(unsigned member) override { session_over(member); }
  void attached() override;
  void done(std::uint64_t operation) override;
  void failed(std::uint64_t operation, int error) override;
  mirror::MemberSet same(std::uint64_t operation, mirror::MemberSet members,
                         unsigned source) override;
  void differs(const mirror::Difference& found) override;
  void grown() override;
  void not_grown(unsigned /*member*/, int /*error*/) override {}
  void dissolved(int error) override;
  bool may_copy(unsigned under_way) override;
  bool has_requests() override { return !requests.empty(); }
  mirror::MemberSet leased() override;
  bool leases_ended() override;
  void over() override { dead = true; }
  void superseded() override { dead = true; }
  void submit();
  void answered(const mirror::Answer& answer);
  void forget(std::uint64_t operation);
  /// Its commands are late until part(), for the thread that carries them does not know it yet.
  void session_over(unsigned member);
  /// That thread cancels all late ones.
  void part();
  struct Out;
  /// Ends the use of a request's memory by a command that was answered.
  void collect(const Out& answered);
  /// The group has ended it. Its user has the memory back as soon as nothing uses it.
  void end(std::uint64_t operation);
  void give_back(std::uint64_t operation);
  bool is_late(unsigned member, unsigned link) const { return linked[member] != link; }
  /// Goes on with the content of this member only. False: not now.
  bool force(unsigned member);

  MirrorWorld& world;
  unsigned number;
  std::vector<unsigned> names;
  std::vector<unsigned> linked;   ///< number of the session that stands, 0: none
  std::vector<unsigned> granted;  ///< number of the session that got the disk, 0: none
  unsigned sessions = 0;
  std::vector<char> broken;  ///< the member has died, which the client does not know yet
  std::vector<char> cut;     ///< nothing passes
  std::map<std::uint64_t, Values> memory;           ///< of requests
  std::map<std::uint64_t, mirror::MemoryUse> used;  ///< that memory
  std::map<std::uint64_t, Values> ended;            ///< content of that memory then
  /// A command of a request that is out, see mirror::MemoryUse.
  struct Out {
    std::uint64_t operation = 0;
    unsigned member = 0;
    unsigned link = 0;
    bool operator==(const Out&) const = default;
  };
  std::vector<Out> out;
  std::map<std::pair<std::uint64_t, unsigned>, Values> copies;  ///< of others, for each member
  std::map<std::uint64_t, std::pair<mirror::Group::Kind, mirror::Range>> requests;
  std::uint64_t next_request = 1;
  std::uint64_t sectors = 0;  ///< of the disk, as users see it
  std::uint64_t forced = 0;   ///< the term with which an operator had it go on
  std::vector<std::optional<std::uint64_t>> shown;  ///< a member has carried out what was sent then
  std::uint64_t claimed_at = 0;                     ///< the newest claim that got a disk
  bool late = false;       ///< another client has a member of its, and it may not know that
  bool asleep = false;     ///< it does nothing for a while
  bool astray = false;     ///< it uses the disk as it was before an operator's decision
  bool dissolves = false;  ///< an operator has it end the mirror
  bool hears = false;      ///< it is told an answer, so no session has broken
  bool dead = false;
  mirror::Group group;
};

/// A server with its storage.
struct MirrorNode {
  /// An earlier state of its machine.
  struct Saved {
    mirror::MemberRecord record;
    Values cached;
    Values durable;
    MirrorEntry entry;
  };

  unsigned number = 0;     ///< its place in the group
  bool elsewhere = false;  ///< it is a member of another group
  bool up = true;
  std::uint64_t room = kSectors;  ///< sectors of its own disk
  std::uint64_t epoch = 1;
  Values cached;
  Values durable;
  std::vector<char> unreadable;  ///< sectors, until they are written
  bool foreign = false;          ///< its disk holds data of others, and is new in the group
  bool overwrite = false;        ///< an operator allows to destroy them
  bool full = false;             ///< it has no room for sectors that it does not have yet
  std::unique_ptr<mirror::Member> member;
  std::optional<Saved> saved;
};

class MirrorWorld {
 public:
  MirrorWorld(std::uint64_t seed, bool trace);
  /// Errors: MirrorViolation.
  void run();

  Rng rng;
  MirrorChecker checker;
  std::uint64_t next_value = 1;
  mirror::GroupOptions options;

 private:
  friend class MirrorClient;
  struct Message {
    unsigned client = 0;
    unsigned link = 0;  ///< the session that carries it
    unsigned node = 0;  ///< the server
    bool is_answer = false;
    bool lands = false;      ///< of a pull: the data have been read
    std::uint64_t pull = 0;  ///< its number at the member
    std::uint64_t sent_at = 0;
    mirror::Command command{};
    mirror::Answer answer{};
    Values data{};
    MirrorTidings told{};
  };

  /// How often things happen in this world, in thousandths.
  struct Mood {
    unsigned fault = 25;
    unsigned request = 500;
    unsigned cool = 50;
    unsigned revive = 700;
    unsigned at_recent = 300;  ///< of the faults: at the member that came back last
    unsigned half_way = 0;     ///< that a client dies when a view is recorded by some members
    unsigned with_client = 0;  ///< that a client dies when a member loses its power
    unsigned scene = 0;        ///< steps until other members are there, 0: never
    bool hand_on = false;      ///< one by one: who comes last goes on with who comes next
    unsigned copy = 1000;      ///< that copying may begin
    unsigned at_once = 1;      ///< copies to one member
    unsigned force = 0;        ///< that an operator forces one member in the end
    bool risen = false;        ///< a client ends half-way above another one's term
    bool back = false;         ///< a member of a whole group is set back
    bool joins = false;        ///< a member is set back while it is brought up to date
    bool again = false;        ///< a client begins with the names before another disk was added
    unsigned foreign = 0;      ///< that a disk which is new in the group holds data of others
    unsigned full = 0;         ///< of the faults: disks fill up, or have room again
    unsigned identity = 0;     ///< another disk, an earlier state, or a forced decision
    unsigned names = 0;        ///< that a client names a server that has not the place any more
    unsigned late = 0;         ///< that a client learns late that another one has its member
    unsigned sleep = 0;        ///< that a client sleeps while the next one begins
    unsigned time = 0;         ///< that leases end
    unsigned wait = 0;         ///< that they do when a client waits for members in vain
    bool twice = false;        ///< a member is lost, and once more while it is brought up to date
    bool rots = false;         ///< a disk shows other data than were written
    bool dissolves = false;    ///< an operator has the mirror end
    bool stalls = false;       ///< a client sleeps while another one goes on without a member
    unsigned slow = 0;         ///< that a pull is answered before its data arrive
    unsigned zeroes = 0;       ///< that a request is to zero, or for extents
    unsigned no_zero = 0;      ///< that a member cannot zero as it is told
    unsigned no_hint = 0;      ///< that a member cannot tell extents
    unsigned astray = 0;       ///< that another server answers a member at the address of a source
    unsigned verify = 0;       ///< that an operator has a client compare the copies
    unsigned steps = 700;
    unsigned lag = 0;         ///< that a command is sent later than the group gives it
    unsigned grow = 0;        ///< that a disk becomes larger
    bool grows = false;       ///< all disks do, and then clients or members die
    unsigned unrecorded = 0;  ///< that a member cannot record that it grows
    unsigned put_off = 0;     ///< that a growth for which requests wait is put off
    unsigned more = 0;        ///< steps until the mirror gets one disk more, 0: never
    unsigned fewer = 0;       ///< that a client does not know that one, from then on
    // Of a group with a vote.
    bool host = false;       ///< a disk is lost together with the client
    bool both = false;       ///< a disk is lost together with the vote
    bool wiped = false;      ///< the vote is wiped when only a disk that is gone has everything
    bool only_vote = false;  ///< disks are lost one after the other, and the vote stays
    bool race = false;  ///< two clients want the vote, each with disks that the other one lacks
    bool races_to_attach = false;  ///< the same, and none of them is attached
    bool void_view = false;        ///< a view that only the vote has recorded
    bool void_join = false;        ///< the same, with one more disk, and a disk is set back
    bool misnamed = false;         ///< a disk loses its power, and the other one is not found
    bool back_in_view = false;     ///< a disk is set back within a view
  };

  unsigned vote() const { return options.members; }
  unsigned voters() const { return options.members + (options.vote ? 1 : 0); }
  unsigned any_disk() { return static_cast<unsigned>(rng.below(options.members)); }
  unsigned any_member() { return static_cast<unsigned>(rng.below(voters())); }
  mirror::MemberSet disks_of(mirror::MemberSet set) const {
    return mirror::disks_of(set, options.members);
  }
  /// The disks that this client names, without the vote.
  unsigned disks_of(const MirrorClient& client) const {
    return static_cast<unsigned>(client.names.size()) - (options.vote ? 1 : 0);
  }
  bool are_enough(mirror::MemberSet members, mirror::MemberSet view) const {
    return mirror::are_enough(members, view, options.members, options.degraded);
  }
  void draw_vote(std::uint64_t seed);
  MirrorNode new_node(unsigned member);
  MirrorNode node_in_step(unsigned member, bool is_old);
  void add_displaced(unsigned member);
  void mistype(unsigned member);
  mirror::MemberRecord first_record(unsigned member);
  std::uint64_t region_bytes() const { return options.region_sectors * kSectorBytes; }
  unsigned another_node(unsigned member);
  void step(bool faults);
  bool half_way() const;
  void change_members();
  void next_scene();
  void hand_on();
  void wake_up();
  void send(Message message);
  void transmit(Message message);
  void carry_late_ones(MirrorClient& client);
  void fill_late(MirrorClient& client, const Message& message);
  MirrorClient& sender_of(const Message& message) { return *clients_[message.client]; }
  void lose_power(unsigned member);
  void deliver();
  void execute(Message message);
  void pull(Message message, const MirrorNode& source);
  const MirrorNode& source_of(const Message& message);
  bool pulls_from(const MirrorNode& source, const Message& message) const;
  /// Goes on without faults until that is so. False: it takes too long.
  template <class Reached>
  bool until(const Reached& reached) {
    for (unsigned i = 0; i < kSceneSteps && !reached(); ++i) step(false);
    return reached();
  }
  bool make_whole();
  void rise_half_way();
  void go_back();
  void go_back_while_joining();
  void stall();
  void lose_twice();
  void rot();
  void go_on(std::uint64_t most);
  void vote_scenes();
  void lose_host();
  void lose_disk_and_vote();
  void wipe_behind();
  void leave_only_vote();
  void race_for_vote();
  void claim_by_others();
  void free_vote_of_others();
  bool is_whole_after_use();
  void race_to_attach();
  void leave_void_view();
  void go_back_beside_void_view();
  void misname_last();
  void go_back_within_view();
  void must_attach(const char* complaint);
  void wipe_vote();
  bool dissolve();
  bool disks_grow() const { return mood_.grow != 0 || mood_.grows; }
  bool has_grown(const MirrorClient& client) const {
    return !disks_grow() || client.sectors == kMostSectors;
  }
  void enlarge(MirrorNode& node, std::uint64_t room);
  void look_at_rooms(MirrorClient& client);
  void put_off_growth();
  void grow();
  void give_up_growth();
  void grow_beside_vote();
  void sized(const MirrorClient& client);
  int claim(const Message& message);
  std::uint64_t told_size(const std::vector<unsigned>& names) const;
  void begin_again();
  void force_one();
  int carry_out(Message& message);
  int tell_extents(Message& message, int error);
  int change(const Message& message, MirrorNode& node);
  int store(MirrorNode& node, mirror::Range range, const Values& data);
  void fill_up();
  void viewed(const Message& message);
  void end_other_sessions(const Message& message);
  void end_session(MirrorClient& client, unsigned member);
  void receive(const Message& message);
  void act(MirrorClient& client);
  void connect(MirrorClient& client);
  void fault();
  void blackout();
  void replace(unsigned member);
  void fill(MirrorNode& node, bool foreign);
  void become_plain(const Message& message);
  void must_not_destroy(const Message& message) const;
  bool may_replace(unsigned member) const;
  bool is_spared(unsigned member) const;
  const mirror::View& newest() const { return ledger_.newest(); }
  unsigned holder(unsigned member) const;
  MirrorNode& held(unsigned member) { return nodes_[holder(member)]; }
  const MirrorNode& held(unsigned member) const { return nodes_[holder(member)]; }
  std::vector<unsigned> holders() const;
  std::vector<unsigned> some_names();
  void change_identity();
  bool add_another(unsigned member);
  void add_copy();
  void save(unsigned member);
  void set_back(unsigned member);
  bool may_set_back(unsigned member) const;
  void lose_clients_of(unsigned member);
  void lose_links(unsigned place, unsigned member);
  bool may_force(unsigned place) const;
  void force_beside_others(unsigned member);
  void free_strangers();
  void free_displaced();
  void free_record(unsigned place);
  void force_again();
  void stop(unsigned node, bool power);
  bool is_settled() const;
  MirrorLedger::Way way_of(const MirrorLedger::Debt& debt) const;
  bool may_lose_power() const;
  void leave_out(unsigned member);
  void new_client(std::vector<unsigned> names);
  void replace_clients();
  void heal();
  void allow_overwriting();
  bool healed() const;
  void compare() const;
  void say(const std::string& text) const;

  bool trace_;
  mirror::MemberSet recent_ = 0;  ///< the member that came back last
  Mood mood_;
  std::uint64_t time_ = 0;
  bool quiet_ = false;  ///< no requests any more
  bool faults_ = true;
  std::optional<std::uint64_t> rotten_;  ///< sector in which one member shows other data
  std::optional<unsigned> plain_;        ///< the server that is no member any more
  bool found_ = false;                   ///< that was told
  bool asks_ = true;                     ///< clients look for disks that have grown
  bool in_doubt_ = false;                ///< a member was set back that a client may count on
  std::uint64_t forced_ = 0;             ///< the history that an operator's newest decision begins
  std::uint64_t history_ = 0;            ///< the newest one that is in force
  std::uint64_t next_disk_ = 1;
  bool votes_ = false;  ///< the vote is in step from the beginning on
  bool added_ = false;  ///< the mirror has one disk more than it began with
  MirrorLedger ledger_;
  std::vector<unsigned> named_;  ///< the newest server of each member
  std::deque<MirrorNode> nodes_;
  std::vector<std::unique_ptr<MirrorClient>> clients_;
  std::vector<Message> net_;
  Rng lag_;                      ///< of what is late
  Rng growth_;                   ///< of disks that grow
  Rng refusals_;                 ///< of growths that fail
  Rng more_;                     ///< of one more disk
  std::vector<Message> unsent_;  ///< commands that the threads of clients have to send
};

}  // namespace sim
