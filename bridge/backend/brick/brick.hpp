// SPDX-License-Identifier: BSD-3-Clause
// The rules of a brick: its blocks, their places, and the clients that may access them one-sided
// (by RDMA, without a request). A place is a block's home in the tier, the disk below the memory. A
// map is a client's right to a block, and a key is the memory region that the client uses for it.
//
//   B1  a block's memory is moved, freed or used for another block only when every key that
//       allowed access to it is dead
//   B2  REVOKE PATH is answered when all keys of the path are dead; the path gets no new one
//   B3  after the answer to UNMAP nothing lands any more; an answered ALLOC is durable; an answered
//       FREE is durable, and the memory is zeroed before another block uses it
//   B4  after the answer to SYNC the bytes are durable
//   B5  after any crash no block has two places and no place two blocks; LIST reports durable state
//   B6  a client that does not give back a recalled block loses the path after the lease
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "bridge/backend/brick/types.hpp"

namespace rnbd::brick {

/// An answer of a brick.
struct Reply {
  int error = 0;                ///< positive errno
  Slot slot = kNone;            ///< of fetch; kNone: no such block, it reads as zeros
  std::vector<MapView> maps{};  ///< of map
};

/// How much of a block is written to its place.
enum class Keep : std::uint8_t {
  whole,
  dirty,  ///< the parts that requests have written since the last store
  span,
};

struct StoreJob {
  std::uint64_t job = 0;
  Slot slot = 0;
  Place place = 0;
  Keep keep{};
  Span span{};
};

/// A map to be made, and the memory that it is for.
struct NewMap {
  std::uint64_t map = 0;
  Path path = 0;
  Block block = 0;
  Slot slot = 0;
  std::uint32_t rights = 0;  ///< kRead, kWrite
};

/// The surroundings of a brick. None of these calls back.
class BrickHost {
 public:
  virtual ~BrickHost() = default;
  virtual void answer(Ticket ticket, const Reply& reply) = 0;
  /// Makes the records durable, in this order; then recorded() is called. One call at a time.
  virtual void record(const std::vector<Record>& records) = 0;
  /// Copies memory to the tier and makes the copy durable; then stored() is called. Parts that are
  /// written meanwhile are dirty again.
  virtual void store(const StoreJob& job) = 0;
  /// Copies the block from the tier to memory; then loaded() is called.
  virtual void load(Slot slot, Place place, std::uint64_t job) = 0;
  virtual void zero(Slot slot) = 0;
  /// Requests may find the block in this memory from now on.
  virtual void open(Block block, Slot slot) = 0;
  /// No request finds the memory any more, until open(). False: a request still uses it, and
  /// released() follows.
  virtual bool close(Block block) = 0;
  /// True: requests have written to the block since its last store.
  virtual bool dirty(Slot slot) const = 0;
  /// Then exposed().
  virtual void expose(const NewMap& wanted) = 0;
  /// Ends the key; then retired().
  virtual void retire(std::uint64_t map) = 0;
  /// Asks a session to give maps back. LIST tells it which ones.
  virtual void recall(Session session) = 0;
  /// Ends the connections of a path.
  virtual void kill(Path path) = 0;
};

struct BrickOptions {
  std::uint32_t slots = 1;      ///< blocks that memory has room for
  std::uint32_t places = 1;     ///< blocks that can be allocated; not less than slots
  std::uint32_t max_maps = 64;  ///< of a session at a time
  std::uint64_t lease = 2000;   ///< milliseconds
};

/// Answers each ticket once, possibly before the call returns.
///
/// Errors:  positive errnos: ENOENT no such block, or map; EEXIST; ENOSPC; EBUSY mapped, or under
///          way; EAGAIN memory is full of maps, or has to wait; EMFILE too many maps; ENOTCONN no
///          such path; ECANCELED a late copy; EIO.
/// Threads: one; pure: no clock, no files.
/// Source:  docs/protocol.md, bricks.
class Brick {
 public:
  Brick(const BrickOptions& options, const std::vector<Kept>& kept, BrickHost& host);

  // Orders and questions.
  void alloc(Ticket ticket, Block first, std::uint64_t count, bool all);
  void free(Ticket ticket, Block first, std::uint64_t count, bool all);
  struct MapOrder {
    Session session = 0;
    Path path = 0;
    Block first = 0;
    std::uint32_t count = 1;
    std::uint32_t rights = 0;   ///< Right
    std::uint32_t number = 0;   ///< counts the session's
    std::uint32_t settled = 0;  ///< all below it have ended for the client
  };
  void map(Ticket ticket, const MapOrder& order);
  void unmap(Ticket ticket, Session session, Block first, std::uint64_t count,
             std::uint64_t generation);
  void sync(Ticket ticket, const std::vector<Span>& spans);
  /// Syncs all blocks that the session has mapped for writing.
  void sync_maps(Ticket ticket, Session session);
  /// Syncs all blocks, whether requests or one-sided writes have changed them.
  void flush(Ticket ticket);
  void revoke(Ticket ticket, Path path);
  /// Ends all maps of a session. Its paths get no new ones.
  void leave(Ticket ticket, Session session);
  /// Brings a block into memory for a request. The request does its work inside answer(). A write
  /// allocates the block.
  void fetch(Ticket ticket, Block block, bool write);
  /// At most `most` blocks from `first` on.
  std::vector<Listed> list(Listing what, Session session, Block first, std::size_t most) const;
  std::uint64_t count(Listing what, Session session) const;

  // Events.
  void path_up(Session session, Path path);
  void path_gone(Path path);
  /// The session's paths are gone already. Its tickets are not answered any more.
  void session_gone(Session session);
  void recorded(int error);
  void stored(std::uint64_t job, int error);
  void loaded(std::uint64_t job, int error);
  void released(Block block);
  void exposed(std::uint64_t map, std::uint32_t key, std::uint64_t address, int error);
  void retired(std::uint64_t map);
  /// Units: milliseconds of a steady clock.
  void tick(std::uint64_t now);

  std::uint64_t free_places() const { return free_places_.size(); }
  std::uint64_t allocated() const { return entries_.size(); }
  /// Slots that hold a block.
  std::uint64_t in_memory() const { return options_.slots - free_slots_.size(); }
  std::vector<MapReport> maps() const;
  const BrickOptions& options() const { return options_; }
  /// The blocks that would exist after a crash, once all records are durable.
  std::vector<Kept> kept() const;
  /// tick() is needed.
  bool recalls() const;

 private:
  /// `empty` has neither memory nor content in the tier; `clean` has both.
  enum class State : std::uint8_t { empty, memory, clean, slow, coming, leaving };
  struct Entry {
    Place place = 0;
    Slot slot = kNone;
    State state = State::empty;
    bool recorded = false;  ///< its ALLOC is durable
    bool stored = false;    ///< the tier holds its content
    bool freeing = false;
    bool unkept = false;   ///< written one-sided, perhaps
    unsigned holds = 0;    ///< users that need it in memory
    unsigned storing = 0;  ///< syncs that wait for bytes, or a record, to be durable
    std::uint64_t used = 0;
    Ticket freer = 0;
    std::set<std::uint64_t> maps{};
  };
  using Entries = std::map<Block, Entry>;
  struct Map {
    enum class State : std::uint8_t { exposing, live, ending };
    State state = State::exposing;
    Block block = 0;
    Session session = 0;
    Path path = 0;
    std::uint32_t rights = 0;
    std::uint64_t generation = 0;
    std::uint32_t key = 0;
    std::uint64_t address = 0;
    Ticket mapper = 0;
    bool doomed = false;  ///< ends as soon as it is there
    bool recalled = false;
    std::optional<std::uint64_t> recalled_at{};  ///< the first tick() behind it
    std::vector<Ticket> enders{};
  };
  struct Operation {
    enum class Kind : std::uint8_t { plain, map, fetch };
    Kind kind = Kind::plain;
    std::uint64_t left = 0;  ///< parts that have not ended
    int error = 0;
    bool begun = false;  ///< a map: keys are being made
    bool write = false;
    MapOrder order{};
    std::uint64_t generation = 0;
    std::set<Block> held{};
    std::vector<Ticket> again{};  ///< the same question, asked again
  };
  struct Pending {
    Record record;
    Ticket ticket = 0;
  };
  struct Job {
    enum class Kind : std::uint8_t { load, evict, sync };
    Kind kind{};
    Block block = 0;
    Ticket ticket = 0;
    bool whole = false;
  };
  struct PastAnswer {
    Ticket running = 0;
    int error = 0;
    std::uint64_t generation = 0;
    std::uint32_t count = 0;
  };
  using Jobs = std::map<std::uint64_t, Job>;
  enum class Bring : std::uint8_t { ready, waits, full };

  // brick.cpp: allocation, records, and the end of operations
  Operation& begin(Ticket ticket);
  void part_done(Ticket ticket, int error);
  void end_part(Ticket ticket);
  void append(const Record& record, Ticket ticket);
  void write_out();
  void apply(const Pending& pending, int error);
  int may_alloc(Block first, std::uint64_t count) const;
  int alloc_one(Block block, Ticket ticket);
  int may_free(Block block) const;
  void free_one(Block block, Ticket ticket);
  void go_on_freeing(Block block);
  void record_free(Block block, Entry& entry);
  void drop(Entries::iterator entry);
  void hold(Block block, Operation& operation);
  void let_go(Operation& operation);
  bool shows(Listing what, Session session, const Entry& entry) const;

  // brick_maps.cpp
  bool answered_before(Ticket ticket, const MapOrder& order);
  int may_map(const MapOrder& order) const;
  int may_map_one(const Entry& entry, const MapOrder& order) const;
  std::uint64_t maps_of(Session session) const;
  void make_keys(Ticket ticket, Operation& operation);
  void answer_map(Ticket ticket, Operation& operation);
  void end_map(std::uint64_t id, Ticket ender);
  void forget_map(std::uint64_t id);
  std::vector<MapView> views(std::uint64_t generation) const;
  std::vector<std::uint64_t> maps_on(Path path) const;
  void recall_for(Session asking);
  void recall_one(std::uint64_t id);

  // brick_memory.cpp: the blocks in memory, and how they come and go
  void wake();
  void run(Ticket ticket, bool ready_only);
  void run_map(Ticket ticket, Operation& operation, bool ready_only);
  void run_fetch(Ticket ticket, Operation& operation, bool ready_only);
  void fail_waiting(Block block, int error, bool all);
  void give_up(Ticket ticket, int error);
  bool in_memory(const Entry& entry) const;
  Bring bring(Block block, Entry& entry);
  bool evict_one();
  bool may_evict(Block block, Entry& entry);
  bool something_moves() const;
  void touch(Block block, Entry& entry);
  void evict(Block block, Entry& entry);
  void evicted(Block block, int error);
  void left_memory(Block block, Entry& entry, State state);
  bool store_part(Block block, Entry& entry, Keep keep, const Span& span, Ticket ticket);
  void synced(const Job& job, int error);
  void fill(Block block, Entry& entry, Slot slot);

  BrickOptions options_;
  BrickHost& host_;
  Entries entries_;
  std::deque<Place> free_places_;
  std::deque<Slot> free_slots_;
  std::set<std::pair<std::uint64_t, Block>> by_use_;  ///< those in memory
  std::map<std::uint64_t, Map> maps_;
  std::map<Path, Session> paths_;
  std::map<Session, std::map<std::uint32_t, PastAnswer>> past_answers_;
  std::map<Session, std::uint32_t> settled_;
  std::map<Ticket, Operation> operations_;
  std::deque<Ticket> waiting_;  ///< for memory
  std::vector<Pending> pending_;
  std::vector<Pending> batch_;
  Jobs jobs_;
  bool recording_ = false;
  int broken_ = 0;  ///< no record can be made durable any more
  unsigned leaving_ = 0;
  bool waking_ = false;
  bool wake_again_ = false;
  std::uint64_t next_ = 1;  ///< maps, generations, jobs
  std::uint64_t stamp_ = 0;
};

}  // namespace rnbd::brick
