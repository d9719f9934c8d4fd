// SPDX-License-Identifier: BSD-3-Clause
// The reservations of all storages of a server, and how they are recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/lease.hpp"
#include "bridge/server/search_path.hpp"
#include "bridge/server/writer_reservations.hpp"
#include "rdma/log.hpp"

namespace rnbd {

/// Knows the writers of each storage, and gives sessions the right to write. It outlives every
/// lease.
///
/// Threads: any. The catalogue's lock guards its maps and all writer counts, and is never held for
///          I/O. Functions that read or save records take two locks before it: first that of one
///          reservation at a time, then that of the store, which keeps other servers out.
class ReservationBook {
 public:
  /// `catalogue` is the catalogue's lock. `store`: null: records are lost with the server.
  ReservationBook(std::mutex& catalogue, std::shared_ptr<WriterStore> store, rtrs::Log log);
  ReservationBook(const ReservationBook&) = delete;
  ReservationBook& operator=(const ReservationBook&) = delete;

  // ---- Sessions that open storage

  /// Does the work of reserve() if there is nothing to record. Either the session only reads. Or it
  /// has the storage open for writing already, and ends no other reservation nor the memory of a
  /// CLAIM. False: call reserve(). Never blocks.
  bool rejoin(Lease& lease, const wire::Uuid& session, OpenKind open_kind);
  /// A reservation that is to be recorded. The lease outlives it, or `given_up` says true for ever.
  struct Wish {
    Wish(Lease& of, const wire::Uuid& who, OpenKind how, std::function<bool()> gone = {})
        : lease{of}, session{who}, kind{how}, given_up{std::move(gone)} {}

    Lease& lease;
    const wire::Uuid session;
    const OpenKind kind;
    const std::function<bool()> given_up;  ///< nobody waits for it; any thread
    bool done = false;                     ///< with `result`
    tl::expected<void, Failure> result;
  };
  /// Lets the session of the wish take part in writing from now on, and those of others that were
  /// announced. Their records become durable together, so that many take little longer than one.
  /// May block.
  ///
  /// Errors: in the result: EIO (of the store), ESTALE (somebody else came since the look of a
  ///         claimed lease).
  void reserve(Wish& wish);
  tl::expected<void, Failure> reserve(Lease& lease, const wire::Uuid& session, OpenKind open_kind);
  /// The call of reserve() for this wish comes soon, or withdraw(). Another one may do its work.
  void announce(const std::shared_ptr<Wish>& wish);
  void withdraw(const std::shared_ptr<Wish>& wish);
  /// The session of this lease comes again, and the server has not missed it. Its own reservation
  /// and all later ones are known from now on. Never blocks.
  void come_again(Lease& lease);
  /// The number that the user of an unclaimed lease has to show with a CLAIM. Never blocks.
  std::uint64_t look(const Lease& lease) const;
  /// Gives an unclaimed lease the right to write, after a look(). It makes no reservation yet.
  /// `device`: the name under which the session has it open. Never blocks.
  ///
  /// Errors: EPERM (too many writers), ESTALE (others may have written since that look).
  tl::expected<Lease, int> claim(const Lease& lease, const wire::Claim& seen,
                                 const wire::Uuid& session, const std::string& device);
  /// True if no other session can have written between the looks of `seen` and `granted`, or if
  /// `seen` is from a lease with the right to write. Where the record has proven `granted`, its
  /// serial is that of the record then.
  bool saw_as_much(const wire::Claim& seen, const wire::Claim& granted) const;

  // ---- The writers

  /// Names the writer of this lease for messages to refused clients: "'vm1' (10.0.0.5:40312)".
  void name_writer(Lease& lease, const std::string& who);
  /// "'vm1' (10.0.0.5:40312) writes to it"; "somebody else writes to it" if no writer has a name.
  std::string who_writes(const WriterCount* storage) const;
  /// A number that changes when another session has had the storage for writing in between; its
  /// upper half stays. 0 for a reader, which does not need it. Of an unclaimed lease it is the
  /// number of the last writer, or 0 while there is one. Never blocks.
  std::uint64_t writer_serial(const Lease& lease) const;
  /// DeviceInfoResponse::generation, and the same when the session of the lease came. Never block.
  std::uint64_t generation(const Lease& lease) const;
  std::uint64_t found_generation(const Lease& lease) const;
  /// True if this lease is the only one that writes to its storage, and no session that is away has
  /// a reservation with which it may come back. Never blocks.
  bool is_alone(const Lease& lease) const;
  /// True if the operator has ended the writing of this lease's session, and no other has written
  /// since. Never blocks.
  bool was_expelled(const Lease& lease) const;
  /// The number of this run of the server; never 0.
  std::uint32_t life() const { return life_; }
  /// The same for storage that the server keeps open; 0: it is open only while it is used.
  std::uint32_t life_of(const Lease& lease) const {
    return lease.storage()->permanent() ? life_ : 0;
  }

  // ---- The end of reservations

  /// Ends all reservations of the session, and records that for the next run of the server. If the
  /// client comes again, its writes in flight are refused. May block.
  ///
  /// Errors: of the store.
  tl::expected<void, std::string> expel(const wire::Uuid& session);
  /// True if sessions have left and record_left() must record that they do not take part any more.
  bool has_left() const;
  /// May block.
  void record_left();
  /// The server is stopping. A session that leaves from now on keeps its reservation, as in a
  /// crash.
  void end();

  // ---- For the catalogue

  /// The record of storage that is being opened. If it has notes, nobody takes a reservation until
  /// this is destroyed: the record must not change in between.
  struct Admission {
    wire::Uuid key{};
    std::unique_lock<std::mutex> one_at_a_time{};
    bool has_notes = false;
    bool recorded = false;  ///< `record` was read
    tl::expected<WriterRecord, std::string> record{};
  };
  /// May block.
  Admission admit(Backend& backend, bool read_only);
  /// Gives the storage its writers and reservations. With the catalogue's lock held.
  void attach(Storage& storage, const Admission& admission);
  /// Counts a writer. With the catalogue's lock held.
  ///
  /// Errors: EPERM.
  int take(const Storage& storage, const Access& access);
  /// A lease with the right to write ends. With the catalogue's lock held.
  void leave(const Lease& lease);
  /// As who_writes(), with the catalogue's lock held.
  std::string in_words(const WriterCount* storage) const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Saved = tl::expected<void, std::string>;

  /// A wish while its reservation is recorded.
  struct Step {
    explicit Step(Wish& of, bool kept)
        : wish{of}, key{kept ? &of.lease.storage()->reservation_key_ : nullptr} {}

    WriterReservations& reservations() const { return *wish.lease.storage()->reservations_; }

    Wish& wish;
    const wire::Uuid* key;             ///< null: it is not kept
    wire::Uuid claim{};                ///< see WriterRecord
    std::uint64_t found = 0;           ///< the generation of the record before this
    std::optional<WriterRecord> next;  ///< none: nothing is to be recorded
  };

  bool is_present(const WriterReservations& reservations, const wire::Uuid& key) const;
  std::vector<Wish*> group_of(Wish& wish);
  void reserve_together(const std::vector<Wish*>& group);
  tl::expected<void, Failure> judge(Step& step, Lock& lock);
  WriterRecord next_record(const Step& step) const;
  void save_together(const std::vector<Step*>& steps, Lock& lock);
  void take_part(Step& step);
  std::uint64_t generation_of(const WriterReservations& reservations) const;
  std::uint64_t found_by(const WriterReservations& reservations, const wire::Uuid& session) const;
  bool is_kept(const Storage& storage) const;
  Saved expel_from(WriterReservations& reservations, const wire::Uuid& key,
                   const wire::Uuid& session, Lock& lock);
  Saved save(const WriterReservations& reservations, const wire::Uuid& key, Lock& lock);
  Saved record_left_of(const WriterReservations& reservations, const wire::Uuid& key, Lock& lock);
  tl::expected<bool, std::string> is_left(const WriterReservations& reservations,
                                          const wire::Uuid& key, Lock& lock);
  void complain_of_left(const std::string& reason) const;
  void forget_users_of(const wire::Uuid& key);
  void forget_writer(const Lease& lease);

  const std::uint32_t life_ = std::random_device{}() | 1U;
  const std::shared_ptr<WriterStore> store_;
  const rtrs::Log log_;
  std::mutex one_at_a_time_;  ///< around the reading and saving of records
  std::mutex& mutex_;         ///< the catalogue's; guards all below
  std::map<FileIdentity, std::shared_ptr<WriterCount>> writers_;
  std::map<wire::Uuid, std::shared_ptr<WriterCount>>
      writers_by_key_;  ///< of storages that are no file
  std::map<FileIdentity, std::shared_ptr<WriterReservations>>
      reservations_;  ///< of storages without a key
  std::map<wire::Uuid, std::shared_ptr<WriterReservations>> reservations_by_key_;
  std::map<const WriterCount*, std::multiset<std::string>> writer_names_;
  std::set<wire::Uuid> left_;  ///< keys of the records that record_left() is to save
  std::vector<std::shared_ptr<Wish>> announced_;
  bool ending_ = false;
};

}  // namespace rnbd
