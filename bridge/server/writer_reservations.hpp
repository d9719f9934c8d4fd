// SPDX-License-Identifier: BSD-3-Clause
// Reservations: the sessions that may write to a storage, and those that may come back to it and
// repeat their requests. A session with a reservation takes part in writing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rnbd {

class BackendNotes;

/// The way in which an export is opened.
struct Access {
  Access(wire::AccessMode how, const wire::Uuid& session = {}) : mode{how}, again{session} {}

  wire::AccessMode mode;
  wire::Uuid again;        ///< the session that had it open
  bool unclaimed = false;  ///< excludes nobody, and is excluded by nobody
};

/// The sessions that take part in writing to a storage.
struct WriterRecord {
  struct Part {
    wire::Uuid session{};
    /// Constant while the reservation lasts. A session that finds a different number must not
    /// repeat its writes that were in flight.
    std::uint32_t number = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::uint32_t origin = 0;  ///< identifies this series of numbers; 0: none was given yet
  std::uint32_t last = 0;    ///< the last number that was given
  std::vector<Part> parts;
  /// Sessions whose reservation the operator has ended, with the last number then.
  std::vector<Part> expelled = {};
  /// Identifies the CLAIM that got the last number, as long as neither another session nor another
  /// device of this one takes part. Zeros: there is none.
  wire::Uuid claim{};

  friend bool operator==(const WriterRecord&, const WriterRecord&) = default;
};

/// Keeps records beyond the end of the server. Clients repeat the requests in flight after its next
/// start, even if others have written meanwhile.
///
/// Threads: one at a time.
class WriterStore {
 public:
  virtual ~WriterStore() = default;
  /// True: what has no record here has had no writer, and no other server changes records
  /// meanwhile. False: others may have records of their own, or these were lost.
  virtual bool knows_all() const { return false; }
  /// Keeps other servers out during a load and the save that depends on it. May block.
  virtual void lock() {}
  virtual void unlock() {}
  /// Announces storage that is open for writing, with its notes; null: it has no room for notes.
  virtual void opened(const wire::Uuid& /*storage*/,
                      const std::shared_ptr<BackendNotes>& /*notes*/) {}
  /// Returns an empty record if no number was given yet. May block.
  ///
  /// Errors: the obstacle to reading it.
  virtual tl::expected<WriterRecord, std::string> load(const wire::Uuid& storage) = 0;
  /// Durable when it returns. May block.
  ///
  /// Errors: the obstacle.
  virtual tl::expected<void, std::string> save(const wire::Uuid& storage,
                                               const WriterRecord& record) = 0;

  struct Entry {
    wire::Uuid storage{};
    WriterRecord record{};
  };
  using Saved = tl::expected<void, std::string>;
  /// False: save_all() takes as long for this storage as save(), beside any others.
  virtual bool saves_together(const wire::Uuid& /*storage*/) { return true; }
  /// The same for several storages. It takes fewer waits for a disk than save() for each. Results
  /// are in the order of the entries.
  virtual std::vector<Saved> save_all(std::span<const Entry> entries) {
    std::vector<Saved> results;
    results.reserve(entries.size());
    for (const Entry& each : entries) results.push_back(save(each.storage, each.record));
    return results;
  }
};

/// The way a session opens storage for writing.
enum class OpenKind : std::uint8_t {
  anew,     ///< a user of the client opens it
  again,    ///< the session had it open, and checks its number before it repeats requests
  unknown,  ///< Linux's clients do not say
};

/// The sessions that have a storage open for writing, and those with a reservation. A session
/// reserves when it opens the storage for writing. The reservation ends with any of these:
/// - another session opens it anew, or a Linux client without a reservation opens it, and the
///   session does not have it open itself;
/// - the session leaves while another one has it open: it closes the storage or is cut off;
/// - the session closes the storage, and another one that was cut off may come back.
/// So two sessions have reservations while a virtual machine migrates, and after a crash of the
/// server.
///
/// Threads: its catalogue's lock.
class WriterReservations {
 public:
  static constexpr std::uint32_t kLate = 0x8000'0000;

  /// True if some session has the storage open for writing. Then record() is up to date.
  bool anybody_there() const { return !there_.empty(); }
  /// True if a session with a reservation is away, and may come back.
  bool anybody_away() const {
    return std::ranges::any_of(record_.parts,
                               [&](const auto& part) { return !is_there(part.session); });
  }
  bool is_there(const wire::Uuid& session) const { return there_.contains(session); }
  bool takes_part(const wire::Uuid& session) const { return number_of(session) != 0; }
  /// True if the session is there with a number of kLate, or with none. Its client does not go on
  /// with what it had open, and may not have closed that yet.
  bool is_late(const wire::Uuid& session) const;
  /// The session's number, with the origin in the upper half. Without a reservation it is the last
  /// number that was given; 0: none was. To that a session that is there adds kLate: it has come
  /// again from elsewhere, or was expelled. Nobody may write with such a number.
  std::uint64_t serial_of(const wire::Uuid& session) const;
  /// The last number that was given, likewise.
  std::uint64_t last_serial() const { return std::uint64_t{record_.origin} << 32 | record_.last; }

  const WriterRecord& record() const { return record_; }
  void set_record(WriterRecord record) { record_ = std::move(record); }
  /// The record with a new reservation for the session. A session that is there keeps its own, but
  /// not if it is_late() and opens anew; a new one ends those of sessions that are away. A session
  /// without a UUID gets none: it could not be recognized. `origin` is that of the first number,
  /// which is 1. `claim` identifies the CLAIM that asks for it; zeros: none does.
  ///
  /// A session that comes again and takes no part gets a number of kLate, which is no one's that
  /// came anew. So the number that it has from a server is not given to it by a clone of that.
  WriterRecord with(const wire::Uuid& session, OpenKind open_kind, std::uint32_t origin,
                    const wire::Uuid& claim = {}) const;
  /// True if this very CLAIM of the session was granted already, and nobody else has had a number
  /// since.
  bool was_granted(const wire::Uuid& session, const wire::Uuid& claim) const;

  void enter(const wire::Uuid& session) { ++there_[session]; }
  /// True: the record has changed.
  bool leave(const wire::Uuid& session, bool closed);
  /// Ends the session's reservation, even while it has the storage open. It will find a different
  /// number when it comes again. False: it had no reservation.
  bool expel(const wire::Uuid& session);
  /// True: the session was expelled, and since then only others of that fate have come.
  bool was_expelled(const wire::Uuid& session) const;
  /// Cut off with the server: the record stays as it is.
  void vanish(const wire::Uuid& session);

 private:
  std::uint32_t number_of(const wire::Uuid& session) const;

  WriterRecord record_;
  std::map<wire::Uuid, unsigned> there_;  ///< how often each has it open
};

/// Counts the mappings that may write to one storage, over all its names and sessions, and notes
/// writes since the last look().
///
/// Threads: its catalogue's lock; count(), look() and changed() any.
class WriterCount {
 public:
  WriterCount() = default;
  explicit WriterCount(std::uint32_t changes) : changes_{changes} {}

  /// Counts a new writer. rw excludes every other writer. Two may write during a migration, because
  /// the old and the new host have the device open for a moment. Returns 0 or EPERM.
  int take(wire::AccessMode mode);
  /// One of the writers has a reservation from now on.
  void take_part() { ++taking_part_; }
  /// False: a writer without a reservation yet may still end those of others.
  bool all_take_part() const { return taking_part_ == count_; }
  unsigned count() const { return count_; }
  bool anybody() const { return count_ > 0; }
  void give_back(bool took_part) {
    --count_;
    if (took_part) --taking_part_;
  }

  /// Called before a session reads, if it may claim the storage later. The number changes when the
  /// content may have changed since that read.
  std::uint32_t look() {
    looked_at_ = true;
    return changes_;
  }
  std::uint32_t changes() const { return changes_; }
  /// Called when a write has ended, which may have begun before the look. Every write calls it, so
  /// only the first one after a look writes to the cache line.
  void changed() {
    if (looked_at_.load(std::memory_order_acquire) && looked_at_.exchange(false)) ++changes_;
  }

 private:
  std::atomic<unsigned> count_{0};
  unsigned taking_part_ = 0;
  std::atomic<bool> looked_at_{true};  ///< possibly in the last run of the server
  std::atomic<std::uint32_t> changes_{0};
};

}  // namespace rnbd
