// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/seat.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <random>
#include <utility>

#include "bridge/protocol/uuid.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/mirror/member_device.hpp"

namespace rnbd::mirror {
namespace {

/// "member 1 of 2 of the mirror group UUID, with 1048576 bytes"
std::string words_of(const wire::Uuid& group, const wire::MirrorShape& shape) {
  if (shape.is_vote())
    return "the vote of the mirror group " + uuid_text(group) + ", which has " +
           std::to_string(shape.members) + " disks";
  return "member " + std::to_string(shape.member + 1) + " of " + std::to_string(shape.members) +
         " of the mirror group " + uuid_text(group) + ", with " + std::to_string(shape.size) +
         " bytes";
}

/// The disk of a client that knows growth may have another size than that of the record, which
/// tells it the size of regions, too. The number of disks may be another one, see may_have().
bool is_of(const wire::MirrorClaim& claim, const wire::MirrorShape& shape) {
  if (claim.base != 0)
    return claim.member == shape.member &&
           claim.size >> shape.region_shift < wire::kMaxGrownRegions;
  wire::MirrorShape asked = wire::shape_of(claim);
  asked.members = shape.members;
  return asked == shape;
}

std::uint64_t new_identity() {
  std::random_device random;
  return (std::uint64_t{random()} << 32 | random()) | 1U;  // 0 is nobody's
}

}  // namespace

// ---- Its record ---------------------------------------------------------------------------------

void Seat::load() {
  auto found = store_->load(storage_);
  const auto former = found && !*found ? store_->former_group(storage_) : wire::Uuid{};
  const std::lock_guard lock{mutex_};
  former_ = former;
  if (!found) {
    trouble_ = found.error().text;
    damaged_ = found.error().error == EBADMSG;
    taken_ = true;
    return;
  }
  if (!*found) return;
  file_ = std::move((*found)->file);
  laid_out_ = (*found)->image.state.shape.size;
  adopt(std::move((*found)->image.state), (*found)->image.sequence);
  taken_ = true;
}

void Seat::adopt(MemberState state, std::uint64_t sequence) {
  sequence_ = sequence;
  size_ = state.shape.size;
  shift_ = state.shape.region_shift;
  if (state.record.disk == 0) {  // a new record, or one of an older version
    state.record.disk = new_identity();
    changes_.head = file_ != nullptr;
  }
  member_.emplace(std::move(state.record), epoch_);
  about_ = std::move(state);
  about_.record = {};
  find_warm();
}

/// The warm regions, by the record that was loaded.
void Seat::find_warm() {
  const MemberRecord& record = member_->record();
  warm_ = RegionMap{about_.shape.regions()};
  for (std::size_t i = 0; i < record.maps.active.words().size(); ++i) {
    std::uint64_t word = record.maps.active.words()[i];
    for (unsigned k = 0; k < record.members; ++k)
      if (!has(record.view.set, k)) word &= record.maps.dirty[k].words()[i];
    warm_.set_word(i, word);
  }
}

MemberState Seat::state() const {
  MemberState all = about_;
  all.record = member_->record();
  return all;
}

wire::MirrorShape Seat::shape() const {
  const std::lock_guard lock{mutex_};
  return about_.shape;
}

std::optional<SeatStatus> Seat::status() const {
  const std::lock_guard lock{mutex_};
  if (!member_ && trouble_.empty()) return {};
  SeatStatus status;
  if (member_) status.state = state();
  status.served = served_ != 0;
  status.lost_power = member_ && member_->claimed().lost_power;
  status.trouble = trouble_;
  return status;
}

std::string Seat::closed_to(std::uint64_t features, std::string_view name) const {
  if (!taken() || (features & wire::kFeatureMirror) != 0) return "";
  const std::lock_guard lock{mutex_};
  const bool known = about_.shape.members != 0;
  return "it is a member of a mirror" +
         (known ? " (" + words_of(about_.group, about_.shape) + ")" : std::string{}) +
         ", and only clients of the mirror use it; name all of its "
         "servers, in the mirror's order, as rnbd-mirror+tcp://HOST,HOST/" +
         std::string{name} + " (with TLS rnbds-mirror+tcp://, over RDMA rnbd-mirror://)";
}

std::uint64_t Seat::told_size(std::uint64_t size) const {
  if (!taken()) return size;
  const std::lock_guard lock{mutex_};
  return member_ && member_->is_kept() ? std::min(size, about_.shape.size) : size;
}

void Seat::attach(Device& device, const Services& services, rtrs::Reactor* reactor) {
  if (taken()) MemberDevice::of(device, *this, services, reactor);
}

// ---- Claims -------------------------------------------------------------------------------------

void Seat::begin_claim(const Services& services, rtrs::Reactor* reactor,
                       std::function<void()> then) {
  {
    const std::lock_guard lock{mutex_};
    claims_.push_back({&services, reactor, then});
    if (claims_.size() > 1) return;
  }
  then();
}

void Seat::end_claim() {
  std::optional<Claimant> next;
  {
    const std::lock_guard lock{mutex_};
    claims_.pop_front();
    forget_unrecorded();
    if (!claims_.empty()) next = claims_.front();
  }
  if (!next) return;
  next->services->later(next->reactor, std::move(next->then));
}

bool Seat::too_far(std::uint64_t term) const {
  return member_ ? !is_near(term, member_->record().promised) : term >= kFirstTermsEnd;
}

rtrs::Failure Seat::misfit(const wire::MirrorClaim& claim,
                           const std::vector<std::uint64_t>& disks) const {
  const std::lock_guard lock{mutex_};
  if (!member_ && !trouble_.empty())
    return {EIO, damaged_ ? "its record as a member is damaged"
                          : "its record as a member could not be read: " + trouble_};
  if (member_ && (claim.group != about_.group || !is_of(claim, about_.shape) ||
                  !member_->may_have(claim.members)))
    return {EEXIST, "its record says " + words_of(about_.group, about_.shape) +
                        ", and the client says " + words_of(claim.group, wire::shape_of(claim))};
  if (member_ && !member_->is_of(disks))
    return {EEXIST,
            "its record has other disks than the client's mirror; if that is over, let "
            "`rnbd-ctl SERVER member free` take it away"};
  if (!member_ && former_ != wire::Uuid{} && claim.group == former_)
    return {EIDRM, "its mirror was dissolved, and it has a disk of its own since"};
  if (!too_far(claim.term)) return {};
  return {ERANGE, "its term " + std::to_string(claim.term) + " is so far ahead of " +
                      std::to_string(member_ ? member_->record().promised : 0) +
                      ", which is promised, that no other client could claim it again"};
}

bool Seat::refuses(const wire::MirrorClaim& claim, std::uint64_t session) const {
  const std::lock_guard lock{mutex_};
  return member_ && member_->refuses(claim.term, session);
}

bool Seat::is_served_to(const wire::MirrorClaim& claim, std::uint64_t session) const {
  const std::lock_guard lock{mutex_};
  return serves(session) && claim.term == member_->record().promised;
}

void Seat::fence() {
  served_ = 0;
  taken_ = true;
}

void Seat::grant(const wire::MirrorClaim& claim, std::uint64_t session) {
  const std::lock_guard lock{mutex_};
  if (!member_) adopt(new_member(claim.group, wire::shape_of(claim)), 0);
  if (member_->claim(claim.term, session) != 0) return;
  about_.claimant = claim.claimant;
  // A view of the session before may have come since the claim was found to fit. Then the answer
  // tells the number that the record has.
  if (claim.members != about_.shape.members && member_->may_have(claim.members))
    set_members(claim.members);
  if (claim.base != 0) grow(claim);
  if (member_->is_kept() || file_ != nullptr) changes_.head = true;
}

/// The maps of disks are the last ones in the record, so that the others keep their places.
void Seat::set_members(unsigned members) {
  const unsigned known = maps_of(about_.shape);
  member_->set_members(members);
  about_.shape.members = members;
  for (unsigned map = known; map < maps_of(about_.shape); ++map)
    for (std::size_t page = 0; page < pages_of(about_.shape); ++page)
      changes_.first.insert({map, page});
}

/// The regions that it adds to the maps are durable with the answer, also where the record has had
/// this size before.
void Seat::grow(const wire::MirrorClaim& claim) {
  (void)member_->take_changed();
  member_->grow(claim.base, claim.size, {claim.seq == 0 ? 0 : claim.term.value(), claim.seq});
  if (!member_->take_changed()) return;
  about_.shape.size = member_->record().size;
  // A server that a mirror names by mistake keeps no record of a claim.
  if (member_->is_kept() || file_ != nullptr) changes_.whole = true;
}

bool Seat::take_back_growth(std::uint64_t session) {
  const std::lock_guard lock{mutex_};
  const bool grown = member_ && laid_out_ && member_->record().size > *laid_out_;
  if (grown) {
    member_->take_back_growth(*laid_out_);
    about_.shape.size = *laid_out_;
    changes_.whole = true;
  }
  return serves(session);
}

/// The new room is in the activity log, so it is warm.
void Seat::use_growth() {
  const std::lock_guard lock{mutex_};
  const std::uint32_t known = warm_.regions();
  size_ = about_.shape.size;
  warm_.resize(about_.shape.regions());
  for (auto region = known; region < warm_.regions(); ++region) warm_.add(region);
}

/// The storage may be somebody else's disk, which a mirror names by mistake.
void Seat::forget_unrecorded() {
  const bool used = is_saving_ || served_ != 0 || !claims_.empty();
  if (!used && file_ == nullptr && trouble_.empty()) forget();
}

void Seat::forget(const std::string& trouble) {
  file_.reset();
  laid_out_.reset();
  trouble_ = trouble;
  damaged_ = false;
  member_.reset();
  about_ = {};
  changes_ = {};
  taken_ = !trouble.empty();
}

tl::expected<void, rtrs::Failure> Seat::free(bool sure) {
  const auto refuse = [](int error, std::string why) {
    return tl::unexpected(rtrs::Failure{error, std::move(why)});
  };
  {
    const std::lock_guard lock{mutex_};
    const bool former = file_ == nullptr && trouble_.empty();
    if (former && former_ == wire::Uuid{})
      return refuse(ENOENT, "it has no record as a member of a mirror");
    if (is_saving_ || served_ != 0 || !claims_.empty())
      return refuse(
          EBUSY, "a client of the mirror has it: have it `mirror discard` this server, or end it");
    if (!sure && !former && !member_ && !damaged_)
      return refuse(EPERM, "its record could not be read (" + trouble_ +
                               "), and may be a good one: restart the server when that has "
                               "passed, or add --force if its mirror is not needed");
    if (!sure && member_ && has(member_->record().view.set, member_->record().number))
      return refuse(
          EPERM, "its record has it in step, as " + words_of(about_.group, about_.shape) +
                     (about_.shape.is_vote()
                          ? ": without it, the disks of that mirror may wait for each other; add "
                            "--force if they are all in step, or not needed"
                          : ": without it, its disk is a new one in that mirror, and the others "
                            "may wait for what it has; add --force if that mirror is not "
                            "needed"));
    claims_.push_back({});  // no claim comes between
  }
  auto freed = removed(store_->remove(storage_), {});
  end_claim();
  return freed;
}

tl::expected<void, rtrs::Failure> Seat::dissolve() {
  const wire::Uuid former = group();
  const Removal removal = store_->dissolve(storage_);
  if (removal.gone && !removal.trouble.empty()) {
    // After a loss of power it could be a member again, and lack what other clients had written.
    const std::lock_guard lock{mutex_};
    forget(removal.trouble);
    return tl::unexpected(rtrs::Failure{EIO, removal.trouble});
  }
  return removed(removal, former);
}

/// Claims find no record, so none must be written into the file that was one.
tl::expected<void, rtrs::Failure> Seat::removed(const Removal& removal, const wire::Uuid& former) {
  if (removal.gone) {
    const std::lock_guard lock{mutex_};
    forget();
    former_ = former;
  }
  if (!removal.trouble.empty()) return tl::unexpected(rtrs::Failure{EIO, removal.trouble});
  return {};
}

void Seat::serve(std::uint64_t session) {
  if (serves(session)) return use_growth();
  {
    const std::lock_guard lock{mutex_};
    size_ = about_.shape.size;
    find_warm();
  }
  served_ = session;
}

void Seat::leave(std::uint64_t session) {
  if (session == 0 || !served_.compare_exchange_strong(session, 0)) return;
  const std::lock_guard lock{mutex_};
  forget_unrecorded();
}

std::uint64_t Seat::host_of(const wire::Uuid& group, const wire::Uuid& claimant,
                            std::uint64_t disk) const {
  const std::lock_guard lock{mutex_};
  const bool knows = group == about_.group && claimant == about_.claimant;
  return knows && member_ && member_->lend(disk) == 0 ? served_.load() : 0;
}

wire::Uuid Seat::group() const {
  const std::lock_guard lock{mutex_};
  return about_.group;
}

bool Seat::knows_vote() const {
  const std::lock_guard lock{mutex_};
  if (!member_ || about_.shape.members == kMaxMembers) return false;
  const MemberRecord& record = member_->record();
  return has(static_cast<MemberSet>(record.view.set | record.confirmed.set), kVote);
}

wire::Uuid Seat::claimant() const {
  const std::lock_guard lock{mutex_};
  return about_.claimant;
}

wire::MirrorClaimResponse Seat::answer(bool refused, bool pulls) const {
  const std::lock_guard lock{mutex_};
  Claimed claimed = member_->claimed();
  claimed.pulls = pulls;
  auto message = wire::encode_claimed(claimed, about_.shape.member, about_.shape.members);
  message.region_shift = static_cast<std::uint8_t>(about_.shape.region_shift);
  message.claimant = about_.claimant;
  if (refused) message.flags |= wire::kMirrorRefused;
  return message;
}

// ---- Orders -------------------------------------------------------------------------------------

std::optional<std::pair<std::uint32_t, std::uint32_t>> Seat::regions_of(
    std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t sector = wire::kSectorSize;
  const std::uint64_t size = this->size();
  const std::uint64_t end = (size + sector - 1) / sector * sector;
  if (length == 0 || offset >= size || length > end - offset) return {};
  const std::uint64_t last = std::min(offset + length, size) - 1;
  return std::pair{static_cast<std::uint32_t>(offset >> shift_),
                   static_cast<std::uint32_t>(last >> shift_)};
}

void Seat::note_regions(unsigned map, std::uint32_t first, std::uint32_t last) {
  for (std::size_t page = page_of(first); page <= page_of(last); ++page)
    changes_.first.insert({map, page});
}

/// Bits that a view sets are saved before the head. Bits that it or a COOL clears may follow it,
/// and come before it only in a page that has both. That is safe: what they are about was copied or
/// flushed before the order came.
void Seat::note_maps(const Maps& before) {
  const MemberRecord& record = member_->record();
  for (unsigned map = 0; map < maps_of(about_.shape); ++map) {
    const RegionMap& old = map == 0 ? before.active : before.dirty[map - 1];
    const RegionMap& now = map_of(record, map);
    const bool cleared = map == 0 || has(record.view.set, map - 1);
    for (std::size_t i = 0; i < now.words().size(); ++i) {
      if (now.words()[i] == old.words()[i]) continue;
      const Place place{map, page_of(static_cast<std::uint32_t>(i * 64))};
      (cleared ? changes_.rest : changes_.first).insert(place);
    }
  }
}

int Seat::view(std::uint64_t session, const View& view, const View& confirmed,
               const std::vector<RegionMap>& inherit, const Pedigree& pedigree,
               std::uint64_t size) {
  const std::lock_guard lock{mutex_};
  if (const int error = order(session)) return error;
  if (too_far(view.id.term) || too_far(confirmed.id.term)) return ERANGE;
  const Maps before = member_->record().maps;
  const ViewId last = member_->record().view.id;
  if (const int error = member_->view(session, view, confirmed, inherit, pedigree, size))
    return error;
  if (member_->record().view.id == last) return 0;
  if (member_->record().size == about_.shape.size)
    note_maps(before);
  else
    changes_.whole = true;
  size_ = about_.shape.size = member_->record().size;
  warm_.resize(about_.shape.regions());
  remember_view(about_, view.id);
  changes_.head = true;
  return 0;
}

int Seat::confirm(std::uint64_t session, const View& view) {
  const std::lock_guard lock{mutex_};
  if (const int error = order(session)) return error;
  if (const int error = member_->confirm(session, view)) return error;
  changes_.head = true;
  return 0;
}

int Seat::cool(std::uint64_t session, const RegionMap& regions, const Age& age,
               std::uint32_t known) {
  const std::lock_guard lock{mutex_};
  if (const int error = order(session)) return error;
  const Maps before = member_->record().maps;
  if (const int error = member_->cool(session, regions, age, known)) return error;
  warm_.remove(regions);
  note_maps(before);
  changes_.head = true;
  return 0;
}

int Seat::may_dissolve(std::uint64_t session, std::uint64_t term) const {
  const std::lock_guard lock{mutex_};
  if (const int error = order(session)) return error;
  return member_->dissolve(session, term);
}

int Seat::write(std::uint64_t session, std::uint32_t first, std::uint32_t last) {
  const std::lock_guard lock{mutex_};
  if (const int error = order(session)) return error;
  (void)member_->take_changed();
  if (const int error = member_->write(session, first, last, false)) return error;
  if (!member_->take_changed()) return 0;
  note_regions(0, first, last);
  for (unsigned k = 0; k < about_.shape.members; ++k)
    if (!has(member_->record().view.set, k)) note_regions(1 + k, first, last);
  return 0;
}

void Seat::warm_up(std::uint32_t first, std::uint32_t last) {
  for (std::uint32_t region = first; region <= last; ++region) warm_.add(region);
}

std::vector<std::byte> Seat::regions(std::uint32_t which, std::uint32_t first,
                                     std::size_t capacity) const {
  const std::lock_guard lock{mutex_};
  if (!member_ || which >= maps_of(about_.shape) || first > about_.shape.regions()) return {};
  return wire::encode_regions(map_of(member_->record(), which), first, capacity);
}

std::uint64_t Seat::begin_pull() {
  const std::lock_guard lock{mutex_};
  return member_->begin_pull();
}

void Seat::end_pull(std::uint64_t pull) {
  const std::lock_guard lock{mutex_};
  if (member_) member_->end_pull(pull);
}

bool Seat::awaits_pull(std::uint64_t pull) const {
  const std::lock_guard lock{mutex_};
  return member_ && member_->awaits_pull(pull);
}

// ---- Durability ---------------------------------------------------------------------------------

void Seat::keep(const Services& services, rtrs::Reactor* reactor,
                std::function<void(int error)> then) {
  {
    const std::lock_guard lock{mutex_};
    if (is_saving_ || !changes_.none()) {
      // The present save may have all of it.
      const std::uint64_t ticket = changes_.none() ? asked_ : ++wanted_;
      waiters_.push_back({ticket, reactor, std::exchange(then, nullptr)});
      if (std::exchange(is_saving_, true)) return;
    }
  }
  then ? then(0) : run_save(services, reactor);
}

struct Seat::Saving {
  Save save;
  std::uint64_t size = 0;      ///< bytes of the group's disk by this record
  std::uint64_t sequence = 0;  ///< of the newest head before
  std::unique_ptr<MemberFile> made;
  tl::expected<void, std::string> result =
      tl::unexpected(std::string{"this server lacks memory, descriptors or threads"});
};

/// Changes during a save are saved together after it.
void Seat::run_save(const Services& services, rtrs::Reactor* reactor) {
  const auto saving = std::make_shared<Saving>();
  {
    const std::lock_guard lock{mutex_};
    saving->size = about_.shape.size;
    saving->sequence = sequence_;
    saving->save = prepare();
  }
  services.record(
      reactor,
      [self = shared_from_this(), saving] {
        attempt([&] { saving->result = self->write_out(saving->save, saving->made); });
      },
      [self = shared_from_this(), saving, &services, reactor] {
        self->saved(services, reactor, *saving);
      });
}

/// With another size the pages get other places in the file, so that it is another file.
Save Seat::prepare() {
  Save save;
  asked_ = wanted_;
  saving_ = std::exchange(changes_, {});
  if (laid_out_ != about_.shape.size) {
    saving_.whole = true;
    save.whole = whole_image(state(), ++sequence_);
    return save;
  }
  const MemberRecord& record = member_->record();
  const auto is_left_out = [&](const Place& place) { return place.first >= maps_of(about_.shape); };
  std::erase_if(saving_.first, is_left_out);
  std::erase_if(saving_.rest, is_left_out);
  const auto patch = [&](const Place& place) {
    return page_patch(about_.shape, record, place.first, place.second);
  };
  if (saving_.whole) {
    saving_.head = true;
    saving_.first.clear();
    saving_.rest.clear();
    for (unsigned map = 0; map < maps_of(about_.shape); ++map)
      for (std::size_t page = 0; page < pages_of(about_.shape); ++page)
        saving_.first.insert({map, page});
  }
  std::ranges::transform(saving_.first, std::back_inserter(save.first), patch);
  std::ranges::transform(saving_.rest, std::back_inserter(save.rest), patch);
  if (saving_.head) save.head = head_patch(about_, record, ++sequence_);
  return save;
}

tl::expected<void, std::string> Seat::write_out(const Save& save,
                                                std::unique_ptr<MemberFile>& made) {
  if (save.whole.empty()) return file_->write(save);
  Creation creation = store_->create(storage_, save.whole);
  made = std::move(creation.file);
  if (!creation.trouble.empty()) return tl::unexpected(std::move(creation.trouble));
  return {};
}

/// After a failure the next save contains these changes, too, and its head has the same place: the
/// other one is whole.
void Seat::saved(const Services& services, rtrs::Reactor* reactor, Saving& saving) {
  const tl::expected<void, std::string>& result = saving.result;
  std::vector<Waiter> done;
  bool more = false;
  {
    const std::lock_guard lock{mutex_};
    if (!result) {
      if (saving.made == nullptr) sequence_ = saving.sequence;
      changes_.whole = changes_.whole || saving_.whole;
      changes_.head = changes_.head || saving_.head;
      changes_.first.merge(saving_.first);
      changes_.rest.merge(saving_.rest);
    }
    if (saving.made != nullptr) {
      file_ = std::move(saving.made);
      laid_out_.reset();
      if (result) laid_out_ = saving.size;
    }
    while (!waiters_.empty() && waiters_.front().ticket <= asked_) {
      done.push_back(std::move(waiters_.front()));
      waiters_.pop_front();
    }
    more = is_saving_ = !waiters_.empty();
    forget_unrecorded();
  }
  if (!result)
    services.say(rtrs::LogLevel::error, "",
                 "cannot keep the record of a member of a mirror group: " + result.error());
  if (more) run_save(services, reactor);
  for (Waiter& waiter : done) {
    const int error = result ? 0 : EIO;
    if (waiter.reactor == reactor) {
      waiter.then(error);
    } else {
      services.later(waiter.reactor, [then = std::move(waiter.then), error] { then(error); });
    }
  }
}

}  // namespace rnbd::mirror
