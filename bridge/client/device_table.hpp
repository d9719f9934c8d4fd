// SPDX-License-Identifier: BSD-3-Clause
// The devices that a session has open, and all decisions about them: open, share, claim, close, and
// open again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/open_orders.hpp"
#include "bridge/client/refusal_patience.hpp"
#include "bridge/client/reopen.hpp"

namespace rnbd {

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

}  // namespace rnbd
