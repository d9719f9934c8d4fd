// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/member_order.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "bridge/protocol/uuid.hpp"

namespace rnbd::mirror {
namespace {

/// Runs that are less than `gap` regions apart become one.
RegionMap without_gaps(const RegionMap& map, std::uint32_t gap) {
  RegionMap coarse = map;
  std::uint32_t last = map.regions();
  for (auto region = map.next(0); region < map.regions(); region = map.next(region + 1)) {
    if (last < map.regions() && region - last <= gap)
      for (std::uint32_t between = last + 1; between < region; ++between) coarse.add(between);
    last = region;
  }
  return coarse;
}

/// "", or why a server has refused the claim of its vote, as docs/protocol.md has it.
std::string why_vote_refused(int error, const wire::Uuid& group) {
  const std::string take_away =
      "`rnbd-ctl SERVER member free .vote/" + uuid_text(group) + " --force`";
  switch (error) {
    case EEXIST:
      return "its vote is that of a mirror with other disks. If that is another mirror, whose "
             "servers have the same names, give one of the two a UUID of its own as group=; if "
             "this mirror was begun anew, take the old vote away: " +
             take_away;
    case ENOSPC:
      return "it has the votes of as many mirrors as it may; take away those that are over "
             "(`rnbd-ctl SERVER member list`, `member free`), or name another server";
    case EBUSY:
      return "it takes this connection for that of another mirror; it is tried again";
    case ERANGE:
      return "its record knows nothing of hundreds of decisions that operators have forced since, "
             "or it is damaged; take it away: " +
             take_away;
    default:
      return "";
  }
}

/// Likewise, and of a disk. `size`: bytes of the mirror.
std::string why_refused(int error, const GroupShape& shape, bool is_vote, std::uint64_t size) {
  if (is_vote)
    if (std::string why = why_vote_refused(error, shape.group); !why.empty()) return why;
  switch (error) {
    case EEXIST:
      return "it is a member of another mirror group, or this one had another size, or other "
             "places "
             "for its disks, as its log says: name the same servers in the same order, or give the "
             "group's UUID as group=; docs/mirror.md, \"A mistyped mirror\" has the way out";
    case EOPNOTSUPP:
      return "it cannot be a member, and its log says why: it needs --state-directory, a file or "
             "block device as its storage, and a client that is as new as itself";
    case EROFS:
      return "its export is read-only, which no member of a mirror can be; export it for writing";
    case EIDRM:
      return "its mirror was dissolved, and it has a disk of its own; if that is to be a member "
             "again, "
             "`rnbd-ctl SERVER member free` lets it";
    case EIO:
      return "its record as a member is damaged or cannot be written, as its log says";
    case EINVAL:
      return "its disk is smaller than the mirror, which has " + std::to_string(size) +
             " bytes or more; enlarge it (docs/mirror.md, \"A mirror that grows\")";
    default:
      return "";
  }
}

std::uint32_t end_of(std::span<const std::byte> page) {
  return rtrs::wire::copy_of<wire::MirrorRegionsResponse>(page).end;
}

}  // namespace

std::vector<std::byte> regions_within(const RegionMap& map, std::size_t room) {
  auto page = wire::encode_regions(map, 0, room);
  for (std::uint32_t gap = 1; end_of(page) < map.regions(); gap *= 2)
    page = wire::encode_regions(without_gaps(map, gap), 0, room);
  return page;
}

MemberOrder::MemberOrder(const Command& command, const GroupShape& shape,
                         const DeviceHandle& device, std::size_t room, std::string source)
    : command_{command}, shape_{shape}, device_{device}, room_{room}, source_{std::move(source)} {
  request_.scope = &device.unresolved;
  request_.renew = &MemberOrder::on_renew;
  request_.done = &MemberOrder::on_done;
  request_.context = this;
}

void MemberOrder::start(rtrs::ClientLane& lane) {
  switch (command_.order) {
    case Order::claim:
    case Order::grow:
      return send_claim(lane);
    case Order::room:
      return ask_room(lane);
    case Order::inspect:
      return ask_status(lane);
    case Order::view:
      return send_view(lane);
    case Order::confirm:
      return send_confirm(lane);
    case Order::beat:
    case Order::cool:
      return send_cool(lane);
    case Order::extents:
      return ask_extents(lane);
    case Order::echo:
      return ask_echo(lane);
    case Order::maps:
      return ask_regions(lane);
    case Order::pull:
      return send_pull(lane);
    case Order::dissolve:
      return send_dissolve(lane);
    default:
      return finish(EINVAL);
  }
}

/// Of the device id in every message that has one.
constexpr std::size_t kMirrorIdOffset = offsetof(wire::MirrorClaim, device_id);

template <class T>
void MemberOrder::send(rtrs::ClientLane& lane, T message, bool question) {
  static_assert(sizeof(T) <= sizeof(wire::MirrorVoteClaim));
  if constexpr (requires { message.device_id; })
    static_assert(offsetof(T, device_id) == kMirrorIdOffset);
  std::memcpy(message_.data(), &message, sizeof(message));
  take_device_id();
  request_.message = {message_.data(), sizeof(message)};
  request_.is_read = question;
  request_.read_data = question ? rtrs::MutableBytes{data_} : rtrs::MutableBytes{};
  request_.write_data = question ? rtrs::ConstBytes{} : rtrs::ConstBytes{data_};
  lane.submit(request_);
}

void MemberOrder::take_device_id() {
  const wire::le32 id = device_.id.load(std::memory_order_relaxed);
  std::memcpy(message_.data() + kMirrorIdOffset, &id, sizeof(id));
}

void MemberOrder::on_renew(rtrs::Request& request) {
  static_cast<MemberOrder*>(request.context)->take_device_id();
}

void MemberOrder::send_claim(rtrs::ClientLane& lane) {
  claiming_ = true;
  data_.assign(sizeof(wire::MirrorClaimResponse), std::byte{});
  wire::MirrorClaim message;
  message.header = wire::header_of(wire::kMirrorClaim);
  message.group = shape_.group;
  message.claimant = shape_.claimant;
  message.term = command_.term;
  message.member = static_cast<std::uint8_t>(number());
  message.members = static_cast<std::uint8_t>(shape_.members);
  message.kind = is_vote() ? wire::MemberKind::vote : wire::MemberKind::disk;
  message.region_shift = static_cast<std::uint8_t>(region_shift());
  message.size = command_.size;
  message.base = command_.base;
  message.seq = command_.view.id.seq;
  if (!is_vote()) return send(lane, message, true);
  wire::MirrorVoteClaim vote;
  vote.claim = message;
  for (std::size_t i = 0; i < std::min(command_.disks.size(), vote.disks.size()); ++i)
    vote.disks[i] = command_.disks[i];
  send(lane, vote, true);
}

/// Every vote has the same, as it has no regions.
unsigned MemberOrder::region_shift() const {
  return is_vote() ? wire::region_shift_of(0) : shape_.region_shift;
}

/// The pedigree, and the regions that absent disks lack, in order. A vote has no use for these.
std::vector<std::byte> MemberOrder::data_of_view() const {
  const auto pedigree = wire::encode_pedigree(renumbered(command_.pedigree, shape_.members));
  const auto head = rtrs::wire::bytes_of(pedigree);
  std::vector<std::byte> all{head.begin(), head.end()};
  const auto absent = shape_.members - size(disks_of(command_.view.set, shape_.members));
  if (absent == 0 || is_vote()) return all;
  const RegionMap nothing{shape_.regions};
  for (unsigned k = 0; k < shape_.members; ++k) {
    if (has(command_.view.set, k)) continue;
    const RegionMap& map = k < command_.inherit.size() ? command_.inherit[k] : nothing;
    const auto page = regions_within(map, (room_ - std::min(room_, head.size())) / absent);
    all.insert(all.end(), page.begin(), page.end());
  }
  return all;
}

wire::MirrorViewFields MemberOrder::recorded(const View& view) const {
  return wire::encode_view({view.id, renumbered(view.set, shape_.members)});
}

void MemberOrder::send_view(rtrs::ClientLane& lane) {
  data_ = data_of_view();
  wire::MirrorView message;
  message.header = wire::header_of(wire::kMirrorView);
  message.view = recorded(command_.view);
  message.confirmed = recorded(command_.confirmed);
  message.size = command_.size;
  send(lane, message, false);
}

void MemberOrder::send_confirm(rtrs::ClientLane& lane) {
  wire::MirrorConfirm message;
  message.header = wire::header_of(wire::kMirrorConfirm);
  message.view = recorded(command_.view);
  send(lane, message, false);
}

/// As many messages as it takes, each about a whole map with as many runs as it can carry.
void MemberOrder::send_cool(rtrs::ClientLane& lane) {
  const bool clears = command_.order == Order::cool;
  RegionMap part{is_vote() ? 0 : shape_.regions};
  data_ = wire::encode_regions(clears ? command_.regions : part, first_, room_);
  first_ = wire::decode_regions(data_, first_, part).value_or(shape_.regions);
  data_ = wire::encode_regions(part, 0, room_);
  wire::MirrorCool message;
  message.header = wire::header_of(wire::kMirrorCool);
  message.term = command_.age.view.term;
  message.seq = command_.age.view.seq;
  message.beat = command_.age.beat;
  message.known = clears ? command_.age.beat : 0;
  send(lane, message, false);
}

void MemberOrder::send_pull(rtrs::ClientLane& lane) {
  const auto uri = std::as_bytes(std::span{source_});
  data_.assign(uri.begin(), uri.end());
  wire::MirrorPull message;
  message.header = wire::header_of(wire::kMirrorPull);
  message.offset = command_.range.begin * wire::kSectorSize;
  message.length = (command_.range.end - command_.range.begin) * wire::kSectorSize;
  message.disk = command_.disk;
  send(lane, message, false);
}

void MemberOrder::send_dissolve(rtrs::ClientLane& lane) {
  wire::MirrorDissolve message;
  message.header = wire::header_of(wire::kMirrorDissolve);
  message.term = command_.term;
  send(lane, message, false);
}

void MemberOrder::ask_echo(rtrs::ClientLane& lane) {
  data_.assign(sizeof(wire::MirrorRegionsResponse) + sizeof(wire::MirrorRun), std::byte{});
  wire::MirrorRegions message;
  message.header = wire::header_of(wire::kMirrorRegions);
  send(lane, message, true);
}

void MemberOrder::ask_room(rtrs::ClientLane& lane) {
  data_.assign(sizeof(wire::MirrorRoomResponse), std::byte{});
  wire::MirrorRoom message;
  message.header = wire::header_of(wire::kMirrorRoom);
  send(lane, message, true);
}

/// A record may know of a larger disk than the client.
void MemberOrder::ask_regions(rtrs::ClientLane& lane) {
  if (which_ == 0 && first_ == 0) {
    const wire::MirrorShape record{0, 0, shape_.region_shift, answer_.claimed.size};
    const RegionMap none{std::max(shape_.regions, record.regions())};
    maps().active = none;
    maps().dirty.assign(shape_.members, none);
  }
  data_.assign(room_, std::byte{});
  wire::MirrorRegions message;
  message.header = wire::header_of(wire::kMirrorRegions);
  message.which = which_;
  message.first = first_;
  send(lane, message, true);
}

void MemberOrder::ask_status(rtrs::ClientLane& lane) {
  data_.assign(room_, std::byte{});
  wire::BlockStatus message;
  message.header = wire::header_of(wire::MessageType::block_status);
  message.offset = empty_;
  message.length = shape_.size - empty_;
  send(lane, message, true);
}

std::uint64_t MemberOrder::asked_bytes() const {
  return std::min(command_.range.end * wire::kSectorSize, shape_.size) -
         command_.range.begin * wire::kSectorSize;
}

void MemberOrder::ask_extents(rtrs::ClientLane& lane) {
  constexpr std::size_t kMost = 1024;  // extents
  data_.assign(std::min(room_, sizeof(wire::BlockStatusResponse) + kMost * sizeof(wire::Extent)),
               std::byte{});
  wire::BlockStatus message;
  message.header = wire::header_of(wire::MessageType::block_status);
  message.offset = command_.range.begin * wire::kSectorSize;
  message.length = asked_bytes();
  send(lane, message, true);
}

void MemberOrder::on_done(rtrs::ClientLane& lane, rtrs::Request& request) {
  static_cast<MemberOrder*>(request.context)->answered(lane, request.error);
}

void MemberOrder::answered(rtrs::ClientLane& lane, int error) {
  if (std::exchange(claiming_, false)) return claimed(lane, error);
  if (command_.order == Order::extents) return told_extents(error);
  if (error == EOPNOTSUPP && command_.order == Order::inspect) return found_data();
  if (error != 0) return finish(error);
  if (command_.order == Order::inspect) return told_status(lane);
  if (command_.order == Order::echo) return finish(0);
  if (command_.order == Order::room) return told_room();
  if (request_.is_read) return told_regions(lane);
  const bool cools = command_.order == Order::beat || command_.order == Order::cool;
  const bool more = cools && !is_vote() && first_ < shape_.regions;
  return more ? send_cool(lane) : finish(0);
}

void MemberOrder::claimed(rtrs::ClientLane& lane, int error) {
  answer_.claimed.promised = command_.term + 1;  // unless it says more
  if (error != 0) {
    if (command_.order == Order::claim)
      complaint_ = why_refused(error, shape_, is_vote(), command_.size);
    return finish(error);
  }
  const auto response = wire::decode<wire::MirrorClaimResponse>(data_, wire::kMirrorClaimResponse);
  auto claimed = wire::decode_claimed(data_);
  if (!response || !claimed) return fail("its answer to a CLAIM makes no sense");
  // The view is that of its newest forced decision. A client that has just begun knows of none.
  if (claimed->promised >= kFirstTermsEnd ||
      !is_near(claimed->promised, std::max(command_.term, claimed->view.id.term)))
    return fail(
        "it has promised a term that is out of reach, as if operators had forced hundreds of "
        "decisions that its record knows nothing of; that is damaged, or another program has "
        "claimed it");
  if ((response->flags & wire::kMirrorRefused) != 0) {
    answer_.claimed.promised = claimed->promised;
    answer_.claimed.view = claimed->view;
    return finish(ESTALE);
  }
  if (auto wrong = judge(*response); !wrong.empty()) return fail(std::move(wrong));
  claimed->view.set = renumbered(claimed->view.set, shape_.members);
  claimed->confirmed.set = renumbered(claimed->confirmed.set, shape_.members);
  claimed->pedigree = renumbered(std::move(claimed->pedigree), shape_.members);
  answer_.claimed = *std::move(claimed);
  // A server that knows no growth grants a claim of the recorded size only, and tells none.
  if (answer_.claimed.size == 0 && command_.order == Order::claim)
    answer_.claimed.size = command_.size;
  if (is_vote() || command_.order == Order::grow) return finish(0);
  if (answer_.claimed.size < command_.size)
    return fail("its record has a smaller size than it was claimed with");
  ask_regions(lane);
}

/// "", or why it is not the member that it must be.
std::string MemberOrder::judge(const wire::MirrorClaimResponse& response) {
  if (response.members != shape_.members)
    return "it belongs to a group of " + std::to_string(response.members) + " members, not " +
           std::to_string(shape_.members) + "; name all of them in the URI";
  if (response.member != number())
    return "it is member " + std::to_string(response.member + 1) +
           " of its group; name the members in the URI in their order";
  const bool is_possible = response.region_shift >= wire::kMinRegionShift &&
                           response.region_shift <= wire::kMaxRegionShift &&
                           response.size >> response.region_shift < wire::kMaxGrownRegions;
  if (response.region_shift != region_shift() && !is_vote() && is_possible)
    other_shift_ = response.region_shift;
  if (response.region_shift != region_shift())
    return "its regions have 2^" + std::to_string(response.region_shift) + " bytes, not 2^" +
           std::to_string(shape_.region_shift) + "; client and server must have the same version";
  return "";
}

Maps& MemberOrder::maps() {
  return command_.order == Order::claim ? answer_.claimed.maps : answer_.maps;
}

RegionMap& MemberOrder::asked_map() {
  return which_ == 0 ? maps().active : maps().dirty[which_ - 1];
}

/// A page of a map: the next one, the next map, or that was all.
void MemberOrder::told_regions(rtrs::ClientLane& lane) {
  const auto end = wire::decode_regions(data_, first_, asked_map());
  if (!end) return fail("its answer about regions makes no sense");
  first_ = *end;
  if (first_ < asked_map().regions()) return ask_regions(lane);
  first_ = 0;
  if (++which_ > shape_.members) return finish(0);
  ask_regions(lane);
}

void MemberOrder::told_status(rtrs::ClientLane& lane) {
  const auto extents = wire::decode_block_status_response(data_, shape_.size - empty_);
  if (!extents) return fail("its answer about its blocks makes no sense");
  for (const wire::Extent& extent : *extents) {
    if ((extent.flags & wire::kExtentZero) == 0) return found_data();
    empty_ += extent.length;
  }
  empty_ < shape_.size ? ask_status(lane) : finish(0);
}

void MemberOrder::told_extents(int error) {
  wire::Extent data;
  data.length = asked_bytes();
  extents_ = {data};
  if (error != 0) return finish(error == EOPNOTSUPP ? 0 : error);
  auto told = wire::decode_block_status_response(data_, asked_bytes());
  if (!told) return fail("its answer about its blocks makes no sense");
  extents_ = *std::move(told);
  finish(0);
}

void MemberOrder::told_room() {
  const auto told = wire::decode<wire::MirrorRoomResponse>(data_, wire::kMirrorRoomResponse);
  if (!told) return fail("its answer about its size makes no sense");
  answer_.room = told->room;
  finish(0);
}

void MemberOrder::found_data() {
  complaint_ =
      "its disk is new in this mirror, and is not known to be empty: a copy of another server's "
      "disk would replace its content; if that is right, add create=copy to the URI of a new "
      "mirror, or --force to `mirror add`; to begin a mirror with its data, name it first";
  finish(ENOTEMPTY);
}

void MemberOrder::fail(std::string complaint) {
  complaint_ = std::move(complaint);
  finish(EPROTO);
}

}  // namespace rnbd::mirror
