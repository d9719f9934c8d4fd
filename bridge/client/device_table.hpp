// SPDX-License-Identifier: BSD-3-Clause
// The devices that a session has open, and all decisions about them: open, share, claim, close, and
// open again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/reopen.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"

namespace rnbd {

/// A device to be closed.
struct OpenedDevice {
  const std::string& name;
  wire::AccessMode access{};
  std::uint32_t open_number = 0;  ///< of its newest OPEN
  /// It is unknown whether the server has it open. A CLOSE must be answered before the next OPEN.
  bool half_closed = false;
};

/// The treatment of a device when the server has forgotten the session.
enum class Renewal : std::uint8_t {
  none,           ///< it is not open, and the next user opens it
  open,           ///< it is opened again
  open_to_close,  ///< likewise, because the server may still have it open, and then it is closed
  close_by_name,  ///< the same toward a server that may give its id to a late OPEN of another
                  ///< device: it waits for that like an OPEN, as half closed
  forget,         ///< It has no user, and the new session does not have it open. Until the recovery
                  ///< has succeeded, it counts as half closed.
};

/// One session with the server. A client's session may have several, one after another, and an
/// answer in one says nothing about the next.
struct Era {
  std::uint64_t number = 0;
  rtrs::SessionLimits limits;
};

/// Numbers the OPENs of a session between own peers, so that no late copy of an OPEN leaves a
/// device open. Chooses the messages that close a device. When the server has forgotten the
/// session, it chooses the devices to open again.
///
/// Threads: one at a time; pure.
/// Source:  docs/protocol.md, CLOSE.
class OpenOrders {
 public:
  const Era& era() const { return era_; }
  bool is_past(std::uint64_t era) const { return era != era_.number; }
  /// The first session is up. False: it has been recovered already.
  bool enter(const rtrs::SessionLimits& limits);

  /// The server has made a new session with these limits. Ids of the old one are not valid any
  /// more. A new attempt to open the devices again begins, and ends an earlier attempt. `forgets`:
  /// a server with a new session has no device open from the old one.
  void begin_recovery(const rtrs::SessionLimits& limits, bool forgets);
  /// False for Linux's server, which may still have the old session.
  static bool forgets(const rtrs::SessionLimits& limits) {
    return (limits.features & rtrs::wire::kFeatureExactlyOnce) != 0;
  }
  /// True if the server has no device open from the old session, or from an earlier attempt.
  bool certain() const { return certain_; }
  /// The number at the end of an OPEN of the attempt; zeros for a server without numbers.
  wire::OpenOrder begin_again();
  /// The attempt is over. Its OPENs in flight are refused as soon as the server has received the
  /// next OPEN or CLOSE. The server may keep the devices of a failed attempt open.
  void end_recovery(bool success);

  static bool numbered(const rtrs::SessionLimits& limits) {
    return (limits.features & rtrs::wire::kFeatureUserMessages) != 0;
  }
  /// The number at the end of the next OPEN, which is unanswered until end(). An OPEN that is sent
  /// `again` after a renewal of the session keeps its number. A CLOSE by that number closes either
  /// one.
  wire::OpenOrder begin(std::uint32_t again = 0);
  /// The OPEN was answered, or its caller has left.
  void end(std::uint32_t number) { unanswered_.erase(number); }

  /// `handle` belongs to the device. It gets the id that the server reports, and must outlive the
  /// operation.
  std::unique_ptr<rtrs::Operation> close(const OpenedDevice& device, DeviceHandle& handle) const;
  /// True if the answer to a CLOSE proves that the device is closed. Otherwise it is half_closed.
  static bool closed(int error);
  /// True if the answer to a CLOSE of that era can be about its device. Without numbers, the CLOSE
  /// may have had no valid id any more, while the server kept the session and its open devices.
  bool believed(std::uint64_t era) const { return !is_past(era) || numbered(era_.limits); }
  /// `certain`: the server has no device open from the old session. `limits` belong to the new one.
  static Renewal renewal(bool is_open, bool is_closing, bool in_use, bool certain,
                         const rtrs::SessionLimits& limits);

 private:
  void end_attempt();

  Era era_;
  std::uint32_t next_ = 1;
  std::set<std::uint32_t> unanswered_;
  std::vector<std::uint32_t> attempt_;  ///< numbers of OPENs
  bool certain_ = false;
  bool cut_short_ = false;  ///< an attempt was made since the last success
};

/// After a recovery all devices wait until each one is open again. A device that another client has
/// taken must not hold up the others for ever. It takes several refusals, because a second outage
/// in between takes time, too. If every device is refused, none of them holds up another: the
/// storage of a server that takes over may come late.
///
/// Threads: its owner's lock; pure.
class RefusalPatience {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// An attempt to renew the session has failed. `holds_up`: the server has refused this device,
  /// but not another one.
  void note(bool holds_up, TimePoint now) {
    if (!holds_up) {
      refusals_ = 0;
    } else if (++refusals_ == 1) {
      since_ = now;
    }
  }
  /// False: the next refusal loses the device.
  bool lasts(TimePoint now) const { return refusals_ < kRefusals || now < since_ + kLongest; }

 private:
  static constexpr unsigned kRefusals = 3;
  static constexpr std::chrono::seconds kLongest{10};

  unsigned refusals_ = 0;  ///< in a row
  TimePoint since_{};
};

/// A device of a session, and all its users.
///
/// Threads: its table's, except `handle`, `in_doubt` and `observers`.
struct ClientDevice {
  enum class State : std::uint8_t { opening, open, closing };
  /// The answer to a user that wants to write.
  enum class Claim : std::uint8_t {
    wait,     ///< until another user's CLAIM is answered
    ask,      ///< the server decides
    covered,  ///< by the CLAIM of another user
    stale,    ///< by the CLAIM of another user, which has seen newer content than this one
  };

  std::string name{};
  OpenOptions options{};
  State state = State::opening;
  unsigned users = 1;  ///< if 0, it is closed later
  /// Those of the users that send no requests.
  std::atomic<unsigned> observers{0};
  /// It is unknown whether the server has it open. A CLOSE must be answered before the next OPEN.
  bool half_closed = false;
  /// No attempt to renew the session has opened it again since nobody uses it: none needs to.
  bool left_out = false;
  std::uint32_t open_number = 0;  ///< of the newest OPEN
  std::uint64_t open_era = 0;     ///< in which that OPEN was sent
  std::uint64_t close_era = 0;    ///< in which the newest CLOSE was sent
  bool claimed = true;            ///< its users may write, if they know its present content
  bool claiming = false;          ///< a user waits for the answer
  Witness claimed_on{};           ///< the claimer's view of the content
  DeviceGeometry geometry{};      ///< the newest known one; the size may grow
  /// As reported in the newest session; the server may have been restarted since the OPEN.
  Witness witness{};
  RefusalPatience patience{};  ///< limits the wait for refused reopenings
  std::string loss{};          ///< why it is lost, and in the table no more; "" = it is not
  DeviceHandle handle{};       ///< the id changes with the session
  /// True if a one-sided write of unknown fate may land until the device is closed. Requests that
  /// were given up do not count here, because `handle` does.
  std::atomic<bool> in_doubt{false};

  /// True if no old write can land over those of a new user.
  bool fit_for_next() const { return !handle.unresolved->writes() && !in_doubt && !half_closed; }
  /// The answer to a user that saw the content at `seen`.
  Claim claim(const Witness& seen) const {
    if (claiming) return Claim::wait;
    if (!claimed) return Claim::ask;
    return knows_as_much(seen, claimed_on, witness) ? Claim::covered : Claim::stale;
  }
  /// The server has granted the CLAIM of such a user, and has reported the present content.
  void claim_granted(const Witness& seen, const wire::DeviceInfoResponse& told);
  /// Takes over a newer answer of the server to DEVICE_INFO.
  void look_again(const wire::DeviceInfoResponse& told);
};

/// The table of a session's devices, by name.
///
/// Pure: Session sends the messages and makes callers wait. The simulator does the same with its
/// own clients. Both report the answers here.
///
/// Threads: one at a time.
/// Source:  docs/architecture.md, A device; docs/protocol.md, CLOSE and closing.
class DeviceTable {
 public:
  using Device = std::shared_ptr<ClientDevice>;
  using Devices = std::map<std::string, Device>;
  /// Creates a record, perhaps of a derived class.
  using Make = std::function<Device()>;

  explicit DeviceTable(Make make) : make_{std::move(make)} {}

  const Devices& devices() const { return devices_; }
  /// Null: there is no device of that name.
  Device find(const std::string& name) const;

  // ---- Sessions with the server ----
  const Era& era() const { return orders_.era(); }
  bool is_past(std::uint64_t era) const { return orders_.is_past(era); }
  /// The one up to which losses are noted.
  std::uint64_t volatile_epoch() const { return volatile_epoch_.known(); }
  bool numbered() const { return OpenOrders::numbered(era().limits); }
  /// The first session is up.
  void enter(const rtrs::SessionLimits& limits);

  // ---- Opening ----
  enum class Join : std::uint8_t {
    wait,       ///< it is being opened or closed
    open,       ///< The caller has to open it.
    share,      ///< The caller is one more user.
    close,      ///< The caller must close it first, and then call join() again.
    busy,       ///< Its users have another access mode.
    read_only,  ///< likewise, and the export cannot be written to
  };
  struct Joined {
    Join what{};
    Device device{};
  };
  Joined join(const std::string& name, const OpenOptions& options);
  /// OPEN. `answer` gets the server's, and must outlive the operation.
  std::unique_ptr<rtrs::Operation> open(ClientDevice& device, rtrs::MutableBytes answer);
  /// The OPEN has ended. `final`: its caller will not ask again in any case.
  void open_ended(const ClientDevice& device, bool final);
  /// True if the session of that OPEN is over, so that the caller must ask again.
  bool asks_again(const ClientDevice& device) const { return is_past(device.open_era); }
  /// The server has opened the device. Returns the limits of the session in which it did; none:
  /// asks_again().
  std::optional<rtrs::SessionLimits> take_id(ClientDevice& device, std::uint32_t id);
  void opened(ClientDevice& device, const DeviceGeometry& geometry);
  /// The OPEN has failed, and the caller leaves. `answered`: the server has refused it. True: the
  /// server may open the device all the same, so the caller must close it.
  bool not_opened(ClientDevice& device, bool answered);

  // ---- Closing ----
  /// A user leaves. `stuck`: cancelled requests of it are under way at the server. True: the caller
  /// has to close it.
  bool release(ClientDevice& device, bool stuck);
  /// The next device without users or requests, which the caller must close. Null: none.
  Device next_left();
  /// CLOSE. The device must outlive it.
  std::unique_ptr<rtrs::Operation> close(ClientDevice& device);
  /// True if the answer to the CLOSE can be about this device.
  bool believes_close(const ClientDevice& device, int error) const {
    return orders_.believed(device.close_era) || !OpenOrders::closed(error);
  }
  /// The CLOSE has ended and is not repeated, except through next_left() and join().
  void close_ended(ClientDevice& device, int error);

  // ---- Recovery, when the server has forgotten the session ----
  /// The server has made another session, see OpenOrders::begin_recovery(). Returns the devices to
  /// be opened again.
  std::vector<ReopenDevice> begin_recovery(const rtrs::SessionLimits& limits, bool forgets,
                                           RefusalPatience::TimePoint now);
  /// True if the server has no device open from the last session, or from a failed attempt.
  bool certain() const { return orders_.certain(); }
  /// The devices to be opened again, until the recovery ends.
  const std::vector<Device>& reopening() const { return reopening_; }

  struct Unflushed {
    Device device;
    bool restarted = false;  ///< the server's machine was restarted; otherwise the storage was lost
  };
  struct Recovered {
    std::vector<Device> lost;  ///< no longer usable by their users
    std::vector<Unflushed> unflushed;
  };
  Recovered recovered(const std::vector<ReopenedDevice>& reopened);
  /// The recovery has failed. `others_wait`: some devices could go on. Returns the devices that are
  /// lost nevertheless.
  std::vector<Device> refused(const std::vector<ReopenedDevice>& reopened, bool others_wait,
                              RefusalPatience::TimePoint now);
  /// Its path was lost.
  std::vector<Device> cut_short(const std::vector<ReopenedDevice>& reopened);

  /// Takes `device` out of the table; its requests keep it. A new record with the server's id takes
  /// its place, only to be closed.
  Device leave_behind(const Device& device, std::uint32_t id);

 private:
  void forget(const ClientDevice& device);
  Renewal renewal_of(const ClientDevice& device) const;
  std::vector<Device> lose(const std::vector<ReopenedDevice>& reopened, bool goes_on);
  void lose(const Device& device, const ReopenedDevice& reopened);
  void end_recovery(bool success);

  Make make_;
  Devices devices_;
  OpenOrders orders_;
  VolatileEpoch volatile_epoch_;
  std::vector<Device> reopening_;
};

/// Remembers lost devices until their last user has left; the device table has their names free
/// again.
///
/// Threads: one at a time.
class LostDevices {
 public:
  /// Returns sentences for the users.
  std::vector<std::string> note(const std::vector<DeviceTable::Device>& lost) {
    std::vector<std::string> complaints;
    std::erase_if(devices_, [](const auto& earlier) { return earlier.expired(); });
    for (const DeviceTable::Device& device : lost) {
      devices_.push_back(device);
      complaints.push_back(device->loss +
                           "; those who have it open get EIO until they open it anew");
    }
    return complaints;
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& device : devices_) {
      if (const auto held = device.lock()) visit(*held);
    }
  }

 private:
  std::vector<std::weak_ptr<ClientDevice>> devices_;
};

}  // namespace rnbd
