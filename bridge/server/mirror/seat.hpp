// SPDX-License-Identifier: BSD-3-Clause
// The place of a storage in its mirror group: the member's rules, its record, and its clients.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/server/annex.hpp"
#include "bridge/server/mirror/member_store.hpp"
#include "bridge/server/services.hpp"
#include "rdma/failure.hpp"

namespace rnbd::mirror {

/// The facts that people ask about a member.
struct SeatStatus {
  MemberState state;
  bool served = false;      ///< a client has claimed it in this life of the server
  bool lost_power = false;  ///< see Claimed
  std::string trouble;      ///< with the record; "": none
};

/// One storage, under all its names, as a member of a mirror group. The seat is empty until the
/// first claim, and again if the claimant leaves before there is a record, which the first view
/// makes.
///
/// Only the served session calls the functions of the data path, on its reactor, so no other thread
/// changes the maps. All its requests end before another session is served.
///
/// Threads: any, except for the data path and where noted.
class Seat final : public StorageAnnex, public std::enable_shared_from_this<Seat> {
 public:
  /// `epoch`: see Member.
  Seat(std::shared_ptr<MemberStore> store, const wire::Uuid& storage, std::uint64_t epoch)
      : store_{std::move(store)}, storage_{storage}, epoch_{epoch} {}

  /// Loads the record, if the storage is a member already. Call it once, before any other function.
  /// May block.
  void load();
  /// True if the storage is a member, or is about to become one.
  bool taken() const { return taken_.load(std::memory_order_acquire); }
  std::optional<SeatStatus> status() const;
  std::string closed_to(std::uint64_t features, std::string_view name) const override;
  /// That of the group's disk: what lies behind it is nobody's.
  std::uint64_t told_size(std::uint64_t size) const override;
  void attach(Device& device, const Services& services, rtrs::Reactor* reactor) override;

  /// Takes the record away, so that the storage is no member any more, or what is left of one whose
  /// mirror was dissolved. `sure`: also if its own
  /// record has it in step, or could not be read. Waits for the state directory.
  ///
  /// Errors: ENOENT (no record), EBUSY (a client has it, or claims it), EPERM (not sure), EIO.
  tl::expected<void, rtrs::Failure> free(bool sure);

  // The data path.
  bool serves(std::uint64_t session) const {
    return session != 0 && served_.load(std::memory_order_acquire) == session;
  }
  /// Of the group's disk, in bytes, while a session is served.
  std::uint64_t size() const { return size_.load(std::memory_order_relaxed); }
  /// The regions of a range of the storage in bytes; nullopt when it ends behind the group's disk.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> regions_of(std::uint64_t offset,
                                                                    std::uint64_t length) const;
  /// True if a write to these regions needs no new record.
  bool warm(std::uint32_t first, std::uint32_t last) const {
    for (std::uint32_t region = first; region <= last; ++region)
      if (!warm_.contains(region)) return false;
    return true;
  }

  // Claims. One after the other: begin() says when it is this one's turn.
  std::uint64_t next_session() { return ++last_session_; }
  /// Calls `then`, at once or on the reactor, when all earlier claims have ended with end_claim().
  void begin_claim(const Services& services, rtrs::Reactor* reactor, std::function<void()> then);
  void end_claim();
  /// The reason that forbids this claim: EIDRM (its mirror was dissolved), EEXIST, EIO, or ERANGE
  /// for a term so far ahead that it would shut all others out. Error 0: it may be granted.
  /// `disks`: those that the claim of a vote names.
  rtrs::Failure misfit(const wire::MirrorClaim& claim,
                       const std::vector<std::uint64_t>& disks = {}) const;
  bool refuses(const wire::MirrorClaim& claim, std::uint64_t session) const;
  bool is_served_to(const wire::MirrorClaim& claim, std::uint64_t session) const;
  /// Serves no session any more. Requests of the last one may still run.
  void fence();
  /// Grants the claim. The caller knows that no request of another session runs. Then call keep().
  void grant(const wire::MirrorClaim& claim, std::uint64_t session);
  /// The grant could not be kept: the record has the size again that its file has, so that it fits
  /// there. True: a client was served, and grows no more than its record does.
  bool take_back_growth(std::uint64_t session);
  /// The grant is durable: serves the session, and what the claim has added to the disk.
  void serve(std::uint64_t session);
  /// The session has closed the device.
  void leave(std::uint64_t session);
  wire::MirrorClaimResponse answer(bool refused, bool pulls) const;
  /// The served session, if it belongs to this client, and the client means this disk; else 0.
  std::uint64_t host_of(const wire::Uuid& group, const wire::Uuid& claimant,
                        std::uint64_t disk) const;
  wire::Uuid group() const;
  wire::Uuid claimant() const;
  /// True if its record has a vote in a view, of which clients of older versions know nothing.
  bool knows_vote() const;

  // Orders of the served session; ESTALE for any other. Call keep() afterwards.
  int view(std::uint64_t session, const View& view, const View& confirmed,
           const std::vector<RegionMap>& inherit, const Pedigree& pedigree, std::uint64_t size);
  int confirm(std::uint64_t session, const View& view);
  int cool(std::uint64_t session, const RegionMap& regions, const Age& age, std::uint32_t known);
  int write(std::uint64_t session, std::uint32_t first, std::uint32_t last);
  /// See Member.
  int may_dissolve(std::uint64_t session, std::uint64_t term) const;
  /// Takes the record away, as its mirror is over. Claims of that group are refused from then on. A
  /// claim has its turn, nobody is served, and no change is left to be kept. Waits for the state
  /// directory. Errors: EIO, with the reason; then the record may be there still, and no other
  /// client is let in.
  tl::expected<void, rtrs::Failure> dissolve();
  /// The record with the regions of a write() is durable.
  void warm_up(std::uint32_t first, std::uint32_t last);
  /// The answer to REGIONS, as much as fits. Empty: there is no such map.
  std::vector<std::byte> regions(std::uint32_t which, std::uint32_t first,
                                 std::size_t capacity) const;
  wire::MirrorShape shape() const;
  // See Member.
  std::uint64_t begin_pull();
  void end_pull(std::uint64_t pull);
  bool awaits_pull(std::uint64_t pull) const;

  /// Makes all changes so far durable. Then it calls `then` with 0, or with EIO and a line in the
  /// log. The call is made on the reactor, or at once if there are no changes.
  void keep(const Services& services, rtrs::Reactor* reactor, std::function<void(int error)> then);

 private:
  using Place = std::pair<unsigned, std::size_t>;  ///< map, page
  struct Waiter {
    std::uint64_t ticket = 0;
    rtrs::Reactor* reactor = nullptr;
    std::function<void(int error)> then;
  };
  struct Changes {
    bool whole = false;  ///< all of it, also pages that the sets do not name
    bool head = false;
    std::set<Place> first;
    std::set<Place> rest;
    bool none() const { return !whole && !head && first.empty() && rest.empty(); }
  };
  struct Claimant {
    const Services* services = nullptr;
    rtrs::Reactor* reactor = nullptr;
    std::function<void()> then;
  };

  // With the lock held.
  bool too_far(std::uint64_t term) const;
  int order(std::uint64_t session) const { return serves(session) ? 0 : ESTALE; }
  void note_maps(const Maps& before);
  void note_regions(unsigned map, std::uint32_t first, std::uint32_t last);
  void adopt(MemberState state, std::uint64_t sequence);
  void set_members(unsigned members);
  void grow(const wire::MirrorClaim& claim);
  void use_growth();
  MemberState state() const;
  void forget_unrecorded();
  /// `trouble`: why other clients are not let in; "": they are.
  void forget(const std::string& trouble = "");
  tl::expected<void, rtrs::Failure> removed(const Removal& removal, const wire::Uuid& former);
  Save prepare();
  void find_warm();

  void run_save(const Services& services, rtrs::Reactor* reactor);
  struct Saving;
  /// `made`: the record's new file, see MemberStore::create().
  tl::expected<void, std::string> write_out(const Save& save, std::unique_ptr<MemberFile>& made);
  void saved(const Services& services, rtrs::Reactor* reactor, Saving& saving);

  const std::shared_ptr<MemberStore> store_;
  const wire::Uuid storage_;
  const std::uint64_t epoch_;
  std::atomic<bool> taken_{false};
  std::atomic<std::uint64_t> served_{0};
  std::atomic<std::uint64_t> last_session_{0};
  RegionMap warm_;                      ///< used by the served session, on its reactor
  std::atomic<std::uint64_t> size_{0};  ///< of the group's disk, by its record that is durable
  unsigned shift_ = 0;                  ///< of a region; constant while a session is served

  mutable std::mutex mutex_;  ///< guards the rest; never held for I/O
  MemberState about_;         ///< except for the record, which member_ has
  std::optional<Member> member_;
  std::string trouble_;   ///< why there is no member_, though there is or may be a record
  bool damaged_ = false;  ///< likewise: the record was read, and makes no sense
  wire::Uuid former_{};   ///< group that was dissolved into this storage; zeros: none
  std::unique_ptr<MemberFile> file_;  ///< used by one save at a time, without the lock
  /// Bytes of the group's disk by whose regions its pages are laid out. None: there is no file, or
  /// it may be another one after a loss of power.
  std::optional<std::uint64_t> laid_out_;
  std::uint64_t sequence_ = 0;  ///< of the newest head
  Changes changes_;             ///< since the last save began
  Changes saving_;              ///< the changes in this save
  bool is_saving_ = false;
  std::uint64_t wanted_ = 0;  ///< ticket
  std::uint64_t asked_ = 0;   ///< of the save that runs
  std::deque<Waiter> waiters_;
  std::deque<Claimant> claims_;  ///< the first one has its turn
};

}  // namespace rnbd::mirror
