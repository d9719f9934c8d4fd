// SPDX-License-Identifier: BSD-3-Clause
// Input: whether peers number their requests (1), then a script of who knocks at a server and what
// becomes of them, one step after another:
//   0 session (1), path (1), cid (1), cid_count (1), attempt (1), first (1)    a connect request
//   1 path (1), name (1)                                                   a handshake is finished
//   2 path (1)                                                             a path begins to close
//   3 path (1), KiB (1)                                                    it keeps so much
//   4 path (1)                                                             it is gone
//   5 path (1)                                                             its session is idle
//   6 path (1)                                                             its session is over
//   7 path (1)                                                             its session is gone
//   8                                                                      somebody needs room
//   9 path (1), KiB (1)                                                    it borrows so much
//   10 path (1), KiB (1)                                                   and gives so much back
#include "rdma/core/admission.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

using namespace rtrs;

namespace {

constexpr std::uint64_t kFloor = 16 << 10;
constexpr AdmissionLimits kLimits{.max_sessions = 3,
                                  .max_paths_per_session = 2,
                                  .max_connections_per_path = 4,
                                  .max_half_open = 5,
                                  .path_memory = 64 << 10,
                                  .path_floor = kFloor,
                                  .memory_limit = 6 * (64 << 10),
                                  .features = wire::kFeatureExactlyOnce};

/// Of the paths that borrow; only the account knows how much.
struct Borrower final : MemoryAccount::Borrower {
  void wake() override {}
};

/// A driver that does what it is told, and knows who is in.
class Script {
 public:
  explicit Script(bool numbered) : features_{numbered ? wire::kFeatureExactlyOnce : 0U} {}
  ~Script() {
    while (!borrowers_.empty()) leave(borrowers_.begin()->first);
  }
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  void step(fuzz::Input& input) {
    switch (input.take<std::uint8_t>() % 11) {
      case 0:
        consider(input);
        break;
      case 1:
        admit(input);
        break;
      case 2:
        if (const auto* path = pick(input)) admission_.close_path(path->session, path->path);
        break;
      case 3:
        if (const auto* path = pick(input)) {
          // It has closed. Requests end, and none are added.
          admission_.close_path(path->session, path->path);
          auto& kept = kept_.try_emplace(path->path, counts_[path->path]).first->second;
          kept = std::min(kept, std::uint64_t{input.take<std::uint8_t>()} % 65 << 10);
          admission_.shrink_path(path->session, path->path, in(*path) ? kept : 0);
          leave(path->path);
          if (const auto held = held_.find(path->path); held != held_.end())
            held->second.memory = kept;
        }
        break;
      case 4:
        if (const auto* path = pick(input)) {
          admission_.remove_path(path->session, path->path);
          leave(path->path);
          held_.erase(path->path);
        }
        break;
      case 5:
        if (const auto* path = pick(input)) admission_.set_idle(path->session);
        break;
      case 6:
        if (const auto* path = pick(input)) admission_.close(path->session);
        break;
      case 7:
        if (const auto* path = pick(input)) {
          admission_.remove(path->session);
          for (const auto& [id, held] : held_) {
            if (held.session == path->session) leave(id);
          }
          std::erase_if(held_,
                        [&](const auto& one) { return one.second.session == path->session; });
        }
        break;
      case 9:
        borrow(input);
        break;
      case 10:
        give_back(input);
        break;
      default:
        turned_away(admission_.turn_away_oldest());
    }
    fuzz::require(admission_.half_open() <= kLimits.max_half_open, "few are half open");
    fuzz::require(admission_.sessions() <= kLimits.max_sessions, "there are few sessions");
    std::uint64_t all = 0;
    std::uint64_t lasting = 0;
    for (const auto& [path, held] : held_) {
      all += held.memory;
      if (!held.leaves) lasting += held.memory;
    }
    fuzz::require(admission_.memory() == all, "each path counts with what it holds");
    fuzz::require(lasting <= kLimits.memory_limit, "they have so much memory at most");
    std::uint64_t lent = 0;
    for (const auto& [path, borrower] : borrowers_) lent += borrower.lent();
    fuzz::require(account_.lent() == lent, "what is lent is counted");
    fuzz::require(account_.floors() == all, "the account knows what paths have of their own");
    fuzz::require(lasting + lent <= kLimits.memory_limit, "with what they borrow, too");
  }

 private:
  static AdmissionLimits limits(MemoryAccount& account) {
    AdmissionLimits result = kLimits;
    result.account = &account;
    return result;
  }

  /// A path that was admitted. One that leaves for another one may keep what storage holds.
  struct Held {
    Admission::SessionId session = 0;
    std::uint64_t memory = 0;
    bool leaves = false;
  };

  void consider(fuzz::Input& input) {
    wire::ConnectParameters hello;
    hello.session_uuid.fill(input.take<std::uint8_t>() % 8);
    hello.path_uuid.fill(input.take<std::uint8_t>() % 4);
    hello.cid_count = static_cast<std::uint16_t>(1 + input.take<std::uint8_t>() % 5);
    hello.cid = static_cast<std::uint16_t>(input.take<std::uint8_t>() % hello.cid_count);
    hello.reconnect_count = static_cast<std::uint16_t>(input.take<std::int8_t>());
    const auto first = input.take<std::uint8_t>();
    hello.first_connection = (first & 1) != 0;
    hello.extension = {.present = features_ != 0 || (first & 2) != 0, .features = features_};

    const auto memory = admission_.memory();
    const auto sessions = admission_.sessions();
    const bool can_borrow = (first & 4) != 0;
    const auto considered = admission_.consider(hello, "", "", 0, can_borrow);
    fuzz::require(memory == admission_.memory(), "a connect request counts no memory");
    fuzz::require(sessions == admission_.sessions(), "a connect request makes no session");
    fuzz::require((considered.error == 0) == (considered.session != 0), "accepted, or an errno");
    turned_away(considered.makes_room);
    if (considered.error == 0 && considered.new_path) {
      fuzz::require(considered.memory == kLimits.path_memory || (can_borrow && features_ != 0),
                    "only a path that can, of a client that numbers, borrows");
      paths_.push_back({considered.session, considered.path});
      counts_[considered.path] = considered.memory;
    }
  }

  void admit(fuzz::Input& input) {
    const auto* path = pick(input);
    if (path == nullptr) return;
    const std::string name(1, static_cast<char>('a' + input.take<std::uint8_t>() % 4));
    const auto memory = admission_.memory();
    const auto admitted = admission_.admit(path->session, path->path, name);
    if (admitted.why_not != nullptr) {
      fuzz::require(memory == admission_.memory(), "who is refused has nothing");
      fuzz::require(admitted.replaces == 0 && admitted.ends == 0 && admitted.spares.empty(),
                    "and takes nothing");
      return;
    }
    held_[path->path] = {path->session, counts_[path->path]};
    std::vector<Admission::PathId> leaving{admitted.replaces};
    for (const auto& spared : admitted.spares) leaving.push_back(spared.path);
    for (const auto goes : leaving) {
      if (goes == 0) continue;
      fuzz::require(in_.contains(goes), "only a path that is in makes room");
      if (const auto held = held_.find(goes); held != held_.end())
        held->second = {held->second.session, 0, true};
    }
    fuzz::require(in_.insert(path->path).second, "a path is admitted once");
    fuzz::require(admitted.replaces == 0 || in_.contains(admitted.replaces),
                  "what is replaced was admitted");
    fuzz::require(admitted.ends != path->session, "nobody ends its own session");
  }

  void borrow(fuzz::Input& input) {
    const auto* path = pick(input);
    const std::uint64_t bytes = (1U + input.take<std::uint8_t>()) << 10;
    const auto held = path == nullptr ? held_.end() : held_.find(path->path);
    if (held == held_.end() || held->second.leaves || held->second.memory != kFloor) return;
    Borrower& borrower = borrowers_[path->path];
    const bool fits = account_.floors() + account_.lent() + bytes <= kLimits.memory_limit / 8 * 7;
    fuzz::require(!account_.lend(borrower, bytes) || fits, "an eighth of the limit is never lent");
  }

  void give_back(fuzz::Input& input) {
    const auto* path = pick(input);
    const std::uint64_t bytes = input.take<std::uint8_t>() << 10;
    const auto known = path == nullptr ? borrowers_.end() : borrowers_.find(path->path);
    if (known == borrowers_.end()) return;
    account_.give_back(known->second, std::min(bytes, known->second.lent()));
  }

  void leave(Admission::PathId path) {
    const auto known = borrowers_.find(path);
    if (known == borrowers_.end()) return;
    account_.leave(known->second);
    borrowers_.erase(known);
  }

  void turned_away(const Admission::Place& place) {
    fuzz::require(!in_.contains(place.path), "who is in is not turned away");
  }

  bool in(const Admission::Place& path) const { return in_.contains(path.path); }
  const Admission::Place* pick(fuzz::Input& input) const {
    const auto which = input.take<std::uint8_t>();
    return paths_.empty() ? nullptr : &paths_[which % paths_.size()];
  }

  const std::uint32_t features_;
  MemoryAccount account_{kLimits.memory_limit};
  Admission admission_{limits(account_)};
  std::vector<Admission::Place> paths_;
  std::set<Admission::PathId> in_;
  std::map<Admission::PathId, std::uint64_t> kept_;  ///< bytes, by a path that was lost
  std::map<Admission::PathId, Held> held_;
  std::map<Admission::PathId, std::uint64_t> counts_;  ///< bytes, once it is admitted
  std::map<Admission::PathId, Borrower> borrowers_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  Script script{(input.take<std::uint8_t>() & 1) != 0};
  while (!input.rest().empty()) script.step(input);
  return 0;
}
