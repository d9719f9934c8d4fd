// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/member_messages.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/io_requests.hpp"
#include "bridge/server/mirror/votes.hpp"
#include "bridge/server/queue_table.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"

namespace rnbd {

using mirror::MemberDevice;

/// A claim while older requests end, and until it is durable.
struct MemberMessages::Claiming {
  rtrs::ServerRequest& request;
  const wire::MirrorClaim claim;
  const std::vector<std::uint64_t> disks;  ///< that the claim of a vote names
  const std::shared_ptr<mirror::Seat> seat;
  const std::uint64_t session;
};

namespace {

/// The sender may change its data meanwhile.
std::vector<std::byte> copy_of_data(const rtrs::ServerRequest& request) {
  return {request.data.begin(), request.data.end()};
}

/// Bytes of its own disk that are there. A device stays as large as clients have been told.
std::uint64_t room_of(const Device& device) {
  const std::uint64_t size = device.geometry().size;
  return std::min(size, device.lease.storage()->backend().shrunk_to().value_or(size));
}

/// Null: the device's session is not the one that the member serves.
MemberDevice* served(const Device& device) {
  auto* const part = part_of<MemberDevice>(device.annexes);
  return part != nullptr && part->is_served() ? part : nullptr;
}

}  // namespace

rtrs::Reactor* MemberMessages::reactor() const { return session_.queues.reactor(); }

bool MemberMessages::on_request(rtrs::ServerRequest& request, wire::MessageType type) {
  struct Handler {
    wire::MessageType type;
    bool is_read;
    void (MemberMessages::*handle)(rtrs::ServerRequest& request);
  };
  static constexpr std::array kHandlers{
      Handler{wire::kMirrorClaim, true, &MemberMessages::claim},
      Handler{wire::kMirrorView, false, &MemberMessages::view},
      Handler{wire::kMirrorConfirm, false, &MemberMessages::confirm},
      Handler{wire::kMirrorRegions, true, &MemberMessages::regions},
      Handler{wire::kMirrorCool, false, &MemberMessages::cool},
      Handler{wire::kMirrorPull, false, &MemberMessages::pull},
      Handler{wire::kMirrorGuest, true, &MemberMessages::guest},
      Handler{wire::kMirrorDissolve, false, &MemberMessages::dissolve},
      Handler{wire::kMirrorRoom, true, &MemberMessages::room},
  };
  const auto known = std::ranges::find(kHandlers, type, &Handler::type);
  if (known == kHandlers.end()) return false;
  const std::uint32_t features = session_.facts.features;
  const bool may = (features & wire::kFeatureMirror) != 0;
  // Their other messages are of another layout, and no claim of theirs is granted.
  const bool knows_disks = (features & wire::kFeatureMirrorDisks) != 0;
  if (!may || known->is_read != request.is_read)
    finish(request, EINVAL);
  else if (!knows_disks && type != wire::kMirrorClaim)
    finish(request, ESTALE);
  else
    (this->*known->handle)(request);
  return true;
}

// ---- Claims -------------------------------------------------------------------------------------

/// 0 or an errno, with a line in the log.
int MemberMessages::unfit_as_member(const Device& device, const wire::MirrorClaim& claim) {
  const Backend& backend = device.lease.storage()->backend();
  const bool knows_disks = (session_.facts.features & wire::kFeatureMirrorDisks) != 0;
  const auto refuse = [&](int error, const char* why) {
    session_.log.refusal(device.name, "refused to make " + in_quotes(device.name) +
                                          " a member of a mirror group: " + why);
    return error;
  };
  if (!knows_disks)
    return refuse(EOPNOTSUPP,
                  "its client is of an older version, which takes any disk with the right number "
                  "for the member; install a newer one there");
  const auto* const seat = part_of<mirror::Seat>(device.lease.storage()->annexes());
  const bool knows_votes = (session_.facts.features & wire::kFeatureMirrorVotes) != 0;
  if (!knows_votes && seat != nullptr && seat->knows_vote())
    return refuse(EOPNOTSUPP,
                  "its mirror has a vote, and its client is of an older version, which knows none; "
                  "install a newer one there");
  if (device.lease.mode() == wire::AccessMode::read_only) return refuse(EROFS, "it is read-only");
  if (!backend.info().can_flush) return refuse(EOPNOTSUPP, "its storage has no flush");
  if (backend.life() != 0)
    return refuse(EOPNOTSUPP,
                  "it is another server's, which may carry out late writes; let that "
                  "one be the member");
  if (seat == nullptr)
    return refuse(EOPNOTSUPP,
                  "nothing of it outlives this server; give it a file, and name a "
                  "--state-directory");
  if (std::max(claim.size.value(), seat->shape().size) > room_of(device))
    return refuse(EINVAL, "the disk of the group is larger; enlarge this one");
  return 0;
}

void MemberMessages::claim(rtrs::ServerRequest& request) {
  const auto claim = wire::decode_claim(request.message);
  if (!claim) return finish(request, EINVAL);
  Device* const device = session_.devices.usable(claim->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  device->lease.look_again();
  const bool is_vote = claim->kind == wire::MemberKind::vote;
  int error = is_vote ? 0 : unfit_as_member(*device, *claim);
  std::shared_ptr<mirror::Seat> vote = is_vote ? vote_of(*device, *claim, error) : nullptr;
  if (error != 0) return finish(request, error);
  if (request.data.size() < wire::kOldestMirrorClaimResponse) return finish(request, EINVAL);
  std::vector<std::uint64_t> disks;
  if (is_vote) {
    auto named = wire::decode_claimed_disks(request.message);
    if (!named) return finish(request, EINVAL);
    disks = *std::move(named);
  }
  auto& seat = is_vote ? *vote : *part_of<mirror::Seat>(device->lease.storage()->annexes());
  MemberDevice& part = MemberDevice::of(*device, seat, session_.services, reactor());
  if (&part.seat() != &seat) return finish(request, EBUSY);  // it is another group's by now
  const ClaimingPtr claiming{
      new Claiming{request, *claim, disks, seat.shared_from_this(), part.begin_session()}};
  seat.begin_claim(session_.services, reactor(), [this, claiming] { turn(claiming); });
}

/// Null: see `error`, and the log.
std::shared_ptr<mirror::Seat> MemberMessages::vote_of(Device& device,
                                                      const wire::MirrorClaim& claim, int& error) {
  const auto refuse = [&](int why, const std::string& text) {
    error = why;
    session_.log.refusal(device.name, "refused a claim of " + in_quotes(device.name) + ": " + text);
    return nullptr;
  };
  auto* const votes = part_of<mirror::Votes>(device.lease.storage()->annexes());
  if (votes == nullptr) return refuse(EINVAL, "it is a disk, and the client wants a vote");
  if (session_.catalogue.permission(device.name, session_.facts.user()) != Permission::write)
    return refuse(EROFS, "the client may only read");
  auto seat = votes->of(claim.group);
  if (seat == nullptr)
    return refuse(ENOSPC,
                  "this server has the votes of as many mirror groups as it may; take away "
                  "those that are over (rnbd-ctl SERVER member list, member free)");
  return seat;
}

/// No other claim of this storage is under way.
void MemberMessages::turn(const ClaimingPtr& claiming) {
  mirror::Seat& seat = *claiming->seat;
  const Device* const device = session_.devices.usable(claiming->claim.device_id);
  if (device == nullptr) return end(claiming, ENOTCONN, false);
  // Only the one that excludes all others may take the disk from a client that has gone. The one
  // that is served takes it from nobody.
  const auto misfit = seat.misfit(claiming->claim, claiming->disks);
  // A vote has nothing that others could write to.
  const bool is_vote = claiming->claim.kind == wire::MemberKind::vote;
  const bool writes = is_vote || device->lease.writable();
  const bool served = seat.serves(claiming->session) || is_vote;
  const bool is_over = misfit.error == EIDRM;  // others may write to what it has become
  if (!is_over && (!writes || (!served && device->lease.storage()->writers()->count() > 1))) {
    session_.log.refusal(device->name,
                         "refused a claim of " + in_quotes(device->name) +
                             (writes ? ": another session has it open for writing; end that first"
                                     : ": its session has not reserved it for writing"));
    return end(claiming, EPERM, false);
  }
  if (misfit.error != 0) {
    session_.log.refusal(device->name,
                         "refused a claim of " + in_quotes(device->name) + ": " + misfit.text);
    return end(claiming, misfit.error, false);
  }
  if (seat.refuses(claiming->claim, claiming->session)) return end(claiming, 0, true);
  if (seat.serves(claiming->session)) return grant(claiming);
  seat.fence();
  if (is_vote) return grant(claiming);
  if (session_.services.sessions == nullptr) return grant(claiming);
  session_.services.sessions->drain(reactor(), device->lease.storage()->writers(), device,
                                    [this, claiming] { grant(claiming); });
}

void MemberMessages::grant(const ClaimingPtr& claiming) {
  if (session_.devices.usable(claiming->claim.device_id) == nullptr)
    return end(claiming, ENOTCONN, false);
  claiming->seat->grant(claiming->claim, claiming->session);
  claiming->seat->keep(session_.services, reactor(),
                       [this, claiming](int error) { granted(claiming, error); });
}

void MemberMessages::granted(const ClaimingPtr& claiming, int error) {
  Device* const device = session_.devices.usable(claiming->claim.device_id);
  if (error == 0 && device == nullptr) error = ENOTCONN;
  if (error == EIO) error = not_recorded(claiming);
  if (error != 0) return end(claiming, error, false);
  claiming->seat->serve(claiming->session);
  const wire::MirrorClaim& claim = claiming->claim;
  session_.log.say(
      rtrs::LogLevel::info, "member_claimed", device->name,
      "claimed " + in_quotes(device->name) + " as " +
          (claim.kind == wire::MemberKind::vote ? "the vote"
                                                : "member " + std::to_string(claim.member)) +
          " of a mirror group, term " + std::to_string(claim.term));
  end(claiming, 0, false);
}

/// A larger record needs room for another one beside the present one. A mirror whose members lack
/// that goes on as it is.
int MemberMessages::not_recorded(const ClaimingPtr& claiming) {
  const wire::MirrorClaim& claim = claiming->claim;
  const bool was_served = claiming->seat->take_back_growth(claiming->session);
  if (!was_served || claim.base == 0 || claim.size == claim.base) return EIO;
  const Device* const device = session_.devices.usable(claim.device_id);
  const std::string name = device != nullptr ? device->name : std::string{};
  session_.log.refusal(name, "cannot record that the mirror of " + in_quotes(name) +
                                 " grows, so it keeps its size: make room in the state directory, "
                                 "and it grows by itself");
  return ENOSPC;
}

/// The answer may end the session, so nothing of it is touched afterwards.
void MemberMessages::end(const ClaimingPtr& claiming, int error, bool refused) {
  rtrs::ServerRequest& request = claiming->request;
  const bool pulls = reader_ != nullptr;
  const auto answer =
      error == 0 ? claiming->seat->answer(refused, pulls) : wire::MirrorClaimResponse{};
  claiming->seat->end_claim();
  if (error != 0) return finish(request, error);
  const wire::ConstBytes bytes = rtrs::wire::bytes_of(answer);
  finish_with(request, bytes.first(std::min(bytes.size(), request.data.size())));
}

/// Its client asks from time to time whether the storage has grown.
void MemberMessages::room(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorRoom>(request.message, wire::kMirrorRoom);
  if (!message) return finish(request, EINVAL);
  Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  const MemberDevice* const part = served(*device);
  if (part == nullptr) return finish(request, ESTALE);
  device->lease.look_again();
  wire::MirrorRoomResponse answer;
  answer.header = wire::header_of(wire::kMirrorRoomResponse);
  answer.size = part->seat().size();
  answer.room = room_of(*device);
  finish_with(request, rtrs::wire::bytes_of(answer));
}

// ---- Orders -------------------------------------------------------------------------------------

void MemberMessages::ended(rtrs::ServerRequest& request, mirror::Seat& seat, int error) {
  if (error != 0) return finish(request, error);
  seat.keep(session_.services, reactor(), [&request](int failure) { finish(request, failure); });
}

void MemberMessages::view(rtrs::ServerRequest& request) {
  const auto message = wire::decode_view_message(request.message);
  if (!message) return finish(request, EINVAL);
  const Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  MemberDevice* const part = served(*device);
  if (part == nullptr) return finish(request, ESTALE);
  const wire::MirrorShape shape = part->seat().shape();
  const auto view = wire::decode_view(message->view, shape.members);
  const auto confirmed = wire::decode_view(message->confirmed, shape.members);
  if (!view || !confirmed) return finish(request, EINVAL);
  const std::vector<std::byte> data = copy_of_data(request);
  wire::ConstBytes rest{data};
  const auto pedigree = wire::take_pedigree(rest);
  const auto inherit = wire::decode_inherited(rest, view->set, shape.members, shape.regions());
  if (!pedigree || !inherit) return finish(request, EINVAL);
  const int error =
      part->seat().view(part->session(), *view, *confirmed, *inherit, *pedigree, message->size);
  ended(request, part->seat(), error);
}

void MemberMessages::confirm(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorConfirm>(request.message, wire::kMirrorConfirm);
  if (!message) return finish(request, EINVAL);
  const Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  MemberDevice* const part = served(*device);
  if (part == nullptr) return finish(request, ESTALE);
  const auto view = wire::decode_view(message->view, part->seat().shape().members);
  if (!view) return finish(request, EINVAL);
  ended(request, part->seat(), part->seat().confirm(part->session(), *view));
}

void MemberMessages::regions(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorRegions>(request.message, wire::kMirrorRegions);
  constexpr std::size_t kLeast = sizeof(wire::MirrorRegionsResponse) + sizeof(wire::MirrorRun);
  if (!message || request.data.size() < kLeast) return finish(request, EINVAL);
  const Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  MemberDevice* const part = served(*device);
  if (part == nullptr) return finish(request, ESTALE);
  const auto page = part->seat().regions(message->which, message->first, request.data.size());
  if (page.empty()) return finish(request, EINVAL);
  finish_with(request, page);
}

void MemberMessages::cool(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorCool>(request.message, wire::kMirrorCool);
  if (!message) return finish(request, EINVAL);
  const Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  MemberDevice* const part = served(*device);
  if (part == nullptr) return finish(request, ESTALE);
  const std::vector<std::byte> data = copy_of_data(request);
  wire::ConstBytes pages{data};
  const auto cold = wire::decode_map(pages, part->seat().shape().regions());
  if (!cold) return finish(request, EINVAL);
  const mirror::Age age{{message->term, message->seq}, message->beat};
  const int error = part->seat().cool(part->session(), *cold, age, message->known);
  ended(request, part->seat(), error);
}

/// A server that pulls for the client that is served, and that may have reached another one than
/// that client means. It may read until the client is served no more.
void MemberMessages::guest(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorGuest>(request.message, wire::kMirrorGuest);
  if (!message || request.data.size() < sizeof(wire::MirrorGuestResponse))
    return finish(request, EINVAL);
  Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  auto* const part = part_of<MemberDevice>(device->annexes);
  if (part == nullptr || !part->be_guest_of(message->group, message->claimant, message->disk))
    return finish(request, ESTALE);
  wire::MirrorGuestResponse answer;
  answer.header = wire::header_of(wire::kMirrorGuestResponse);
  finish_with(request, rtrs::wire::bytes_of(answer));
}

// ---- The end of a mirror ------------------------------------------------------------------------

struct MemberMessages::Dissolving {
  rtrs::ServerRequest& request;
  const wire::MirrorDissolve message;
  const std::shared_ptr<mirror::Seat> seat;
  const std::uint64_t session;
  tl::expected<void, rtrs::Failure> removed =
      tl::unexpected(rtrs::Failure{EIO, "this server lacks memory, descriptors or threads"});
};

void MemberMessages::dissolve(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorDissolve>(request.message, wire::kMirrorDissolve);
  if (!message || message->flags != 0) return finish(request, EINVAL);
  const Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  MemberDevice* const part = served(*device);
  if (part == nullptr) return finish(request, ESTALE);
  const std::shared_ptr<Dissolving> dissolving{
      new Dissolving{request, *message, part->seat().shared_from_this(), part->session()}};
  dissolving->seat->begin_claim(session_.services, reactor(),
                                [this, dissolving] { dissolve_now(dissolving); });
}

/// No claim is under way, and none begins before the end. Nobody is served from here on, so that no
/// order makes another record of the one that goes.
void MemberMessages::dissolve_now(const std::shared_ptr<Dissolving>& dissolving) {
  mirror::Seat& seat = *dissolving->seat;
  const auto end = [dissolving](int error) {
    dissolving->seat->end_claim();
    finish(dissolving->request, error);
  };
  if (const int error = seat.may_dissolve(dissolving->session, dissolving->message.term))
    return end(error);
  seat.fence();
  seat.keep(session_.services, reactor(), [this, dissolving, end](int error) {
    if (error != 0) return end(error);
    session_.services.record(
        reactor(),
        [dissolving] { attempt([&] { dissolving->removed = dissolving->seat->dissolve(); }); },
        [this, dissolving, end] {
          const auto& removed = dissolving->removed;
          const Device* const device = session_.devices.usable(dissolving->message.device_id);
          const std::string name = device != nullptr ? device->name : std::string{};
          if (removed)
            session_.log.say(rtrs::LogLevel::info, "member_dissolved", name,
                             "dissolved the mirror of " + in_quotes(name) +
                                 ": its record as a member is gone, and it is a disk of its own");
          else
            session_.log.say(rtrs::LogLevel::error, "member_dissolved", name,
                             "cannot take away the record of " + in_quotes(name) +
                                 " as a member of a mirror group: " + removed.error().text);
          end(removed ? 0 : removed.error().error);
        });
  });
}

}  // namespace rnbd
