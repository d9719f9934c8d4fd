// SPDX-License-Identifier: BSD-3-Clause
// A disk that is a brick, its users in mode=passive, a rival that maps blocks, too, and a network
// card that keeps what it has confirmed to itself: every byte that was written one-sided is hidden
// from the server's processor until a read pushes it out, and volatile until it was synced. The
// rules of both sides are the shipped ones.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/backend/brick/brick.hpp"
#include "bridge/client/brick/flush_debt.hpp"
#include "bridge/client/brick/map_cache.hpp"
#include "tests/sim/rng.hpp"

namespace sim {

namespace brick = rnbd::brick;

/// A rule is broken.
struct PassiveViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr unsigned kPassiveCells = 2;  ///< that a block consists of here
inline constexpr auto kPassiveCell = static_cast<std::uint32_t>(brick::kBlockSize / kPassiveCells);
using PassiveCells = std::array<std::uint64_t, kPassiveCells>;

/// A register of the disk: which of its values may be read, and which may be there after a crash.
class PassiveRegister {
 public:
  /// Moments grow. A write that never ends has `kNever`.
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  void begin(std::uint64_t value, std::uint64_t now) { writes_.push_back({value, now, kNever}); }
  void end(std::uint64_t value, std::uint64_t now);
  /// Whether a read that was asked for at `asked` may bring the value.
  bool may_show(std::uint64_t value, std::uint64_t asked) const;
  /// Writes that had ended before `asked` are durable.
  void flushed(std::uint64_t asked) { durable_before_ = std::max(durable_before_, asked); }
  bool may_survive(std::uint64_t value) const { return is_newest(value, durable_before_); }
  /// It has this value now, and only requests under way may still change it.
  void restart(std::uint64_t value, std::uint64_t now);

 private:
  struct Write {
    std::uint64_t value = 0;
    std::uint64_t begun = 0;
    std::uint64_t ended = 0;
  };
  bool is_newest(std::uint64_t value, std::uint64_t before) const;
  std::vector<Write> writes_{Write{}};
  std::uint64_t durable_before_ = 0;
};

class PassiveWorld final : public brick::BrickHost {
 public:
  PassiveWorld(std::uint64_t seed, bool trace);
  /// Errors: PassiveViolation.
  void run();
  std::uint64_t operations() const { return operations_; }

  // BrickHost
  void answer(brick::Ticket ticket, const brick::Reply& reply) override;
  void record(const std::vector<brick::Record>& records) override;
  void store(const brick::StoreJob& job) override;
  void load(brick::Slot slot, brick::Place place, std::uint64_t job) override;
  void zero(brick::Slot slot) override { memory_[slot] = {}; }
  void open(brick::Block, brick::Slot) override {}
  bool close(brick::Block) override { return true; }
  bool dirty(brick::Slot slot) const override { return dirty_[slot] != 0; }
  void expose(const brick::NewMap& wanted) override;
  void retire(std::uint64_t map) override;
  void recall(brick::Session session) override;
  void kill(brick::Path path) override;

 private:
  using Work = std::function<void()>;
  using Then = std::function<void(const brick::Reply&)>;
  using Block = rnbd::MapCache::Block;
  static constexpr brick::Session kUsers = 1;
  static constexpr brick::Session kRival = 2;

  /// A key at the server's network card.
  struct Key {
    brick::Slot slot = 0;
    brick::Path path = 0;
    std::uint32_t rights = 0;
    bool alive = true;
    bool unmapping = false;  ///< its client has asked for its end
  };
  /// Confirmed, and not seen by the processor.
  struct Hidden {
    std::uint64_t key = 0;
    unsigned cell = 0;
    std::uint64_t value = 0;
  };
  struct Request {
    enum class Kind : std::uint8_t { read, write, flush };
    Kind kind{};
    Block block = 0;
    unsigned cell = 0;
    std::uint64_t value = 0;
    std::uint64_t asked = 0;
    rnbd::FlushDebt::Debt debt{};
    bool has_debt = false;
    bool ended = false;
  };
  using RequestPtr = std::shared_ptr<Request>;

  [[noreturn]] void fail(const std::string& text) const { throw PassiveViolation(text); }
  void say(const std::string& text) const;
  void later(Work work) { events_.push_back(std::move(work)); }
  /// Work of this life of the server; a crash drops it.
  brick::Ticket ask(Then then);
  PassiveRegister& cell_of(const Request& request) {
    return registers_[request.block * kPassiveCells + request.cell];
  }

  // passive_world.cpp
  void start(const std::vector<brick::Record>& log);
  void step(bool requests);
  void crash();
  void check_restart();
  std::vector<brick::Kept> replay() const;
  void finish();
  bool idle() const;

  // passive_brick_side.cpp
  void push_out(std::uint64_t key);
  void push_out_path(brick::Path path);
  std::uint64_t seen_one_sided(const Key& key, brick::Path path, unsigned cell) const;
  Key& usable(std::uint64_t key, std::uint32_t right);
  void rival_acts();

  // passive_client.cpp: as rnbd::PassiveDisk and rnbd::PassiveBrick do it
  void begin_request();
  void carry_out(const RequestPtr& request);
  void one_sided(const RequestPtr& request, const rnbd::MapCache::Pin& pin);
  void read_one_sided(const RequestPtr& request, const rnbd::MapCache::Pin& pin, brick::Path path);
  void write_one_sided(const RequestPtr& request, const rnbd::MapCache::Pin& pin, brick::Path path);
  void watch_write(const RequestPtr& request, const rnbd::MapCache::Pin& pin, brick::Path path);
  void give_up_one_sided(const RequestPtr& request, const rnbd::MapCache::Pin& pin);
  bool lives(brick::Path path) const { return path_alive_ && path_ == path; }
  void two_sided(const RequestPtr& request);
  void send(const RequestPtr& request);
  void flush(const RequestPtr& request);
  void send_flush(const RequestPtr& request);
  void end_flush(const RequestPtr& request, int error);
  void end(const RequestPtr& request);
  void end_read(const RequestPtr& request, std::uint64_t value);
  void before_two_sided(Block first, Block last, const Work& then);
  void lose_path();
  void work();
  void recover();
  void wake();

  Rng rng_;
  bool trace_;
  unsigned steps_ = 0, crashes_ = 0, losses_ = 0;  ///< of the last two: in thousandths
  brick::BrickOptions options_;
  std::uint64_t blocks_ = 3;
  std::unique_ptr<brick::Brick> brick_;
  std::vector<Work> events_;
  std::map<brick::Ticket, Then> tickets_;
  std::uint64_t next_ = 10;  ///< tickets, paths, values
  std::uint64_t now_ = 1;
  std::uint64_t operations_ = 0;

  // The server
  std::vector<PassiveCells> memory_;
  std::vector<char> dirty_;
  std::vector<PassiveCells> cached_;   ///< of the tier, by place
  std::vector<PassiveCells> durable_;  ///< likewise
  std::vector<brick::Record> log_;
  std::map<std::uint64_t, Key> keys_;  ///< by map
  std::vector<Hidden> hidden_;

  // The users
  std::unique_ptr<rnbd::MapCache> cache_;
  rnbd::FlushDebt debt_;
  brick::Path path_ = 0;
  bool path_alive_ = false;
  bool revoked_ = true;
  bool working_ = false;  ///< with the brick
  bool recalled_ = false;
  bool flushing_ = false;
  std::uint32_t number_ = 0;
  std::vector<Work> waiting_;
  std::vector<RequestPtr> requests_;

  // The rival
  brick::Path rival_path_ = 0;
  std::uint32_t rival_number_ = 0;
  std::vector<brick::MapView> rival_maps_;
  bool rival_busy_ = false;

  std::vector<PassiveRegister> registers_;
};

}  // namespace sim
