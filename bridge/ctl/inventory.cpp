// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/inventory.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "bridge/client/uri.hpp"
#include "bridge/ctl/annexes.hpp"
#include "bridge/ctl/reports.hpp"
#include "bridge/ctl/shared_bridge.hpp"

namespace rnbd {
namespace {

// ---- Fields -------------------------------------------------------------------------------------

// Lists, the help and the man page have them from here.
constexpr CtlKind kText = CtlKind::text, kNumber = CtlKind::number, kCount = CtlKind::count,
                  kBytes = CtlKind::bytes;
constexpr std::string_view kMeaningOfProgram =
    "The program behind it, by the name of its control socket; of a disk the mapping's.";
constexpr std::string_view kMeaningOfVersion =
    "The version of that program; empty if it does not tell, as older ones.";
constexpr std::string_view kMeaningOfDirection = "import at a client, export at a server.";
constexpr std::string_view kMeaningOfTrouble = "Why it does not work; empty when it does.";
constexpr std::string_view kMeaningOfHca = "Of an RDMA adapter; empty, as only a kernel knows it.";
constexpr std::string_view kMeaningOfBytes = "Bytes of a path; empty, as they are not counted.";

constexpr CtlField kDeviceFields[] = {
    {"sessname", kText, true, "The session that has it open."},
    {"mapping_path", kText, true, "Its name at the server."},
    {"devname", kText, true, "Its name in the kernel, nbd0."},
    {"devpath", kText, false, "The same with its folder, /dev/nbd0."},
    {"state", kText, true,
     "open, free, waiting, refused, closed, shrunk, displaced, recovering or unattended."},
    {"access_mode", kText, true,
     "rw, ro or migration; ro if another client writes; of a free export what may be."},
    {"size", kBytes, false, "Bytes that it has."},
    {"rx_sect", kCount, false, "Sectors of 512 bytes that came from the server so far."},
    {"tx_sect", kCount, false, "Sectors of 512 bytes that went to the server so far."},
    {"users", kNumber, true,
     "How many have it open: NBD clients, the kernel as one; at a server 1 a session."},
    {"openers", kText, false,
     "Who has it open: mounts, swap, processes; at a server the session with its address."},
    {"uuid", kText, false, "Its UUID, by which the client knows it again."},
    {"program", kText, false, kMeaningOfProgram},
    {"version", kText, false, kMeaningOfVersion},
    {"hostname", kText, true, "At a server the host of the client that has it open."},
    {"direction", kText, true, kMeaningOfDirection},
    {"trouble", kText, true, kMeaningOfTrouble},
};

constexpr CtlField kSessionFields[] = {
    {"sessname", kText, true, "Its name, which the client chose."},
    {"path_cnt", kCount, false, "How many paths it has."},
    {"act_path_cnt", kCount, false, "How many of its paths are connected."},
    {"state", kText, true, "connected, disconnected, or idle: nobody has opened a device yet."},
    {"path_uu", kText, true, "A letter for each path: U connected, - idle, _ any other state."},
    {"mp", kText, false, "How a path is chosen: round-robin, min-inflight or min-latency."},
    {"mp_short", kText, true, "The same in short: rr, mi or ml."},
    {"tx_bytes", kBytes, true, "Bytes that went to the server so far."},
    {"rx_bytes", kBytes, true, "Bytes that came from the server so far."},
    {"inflights", kCount, false, "Requests that are not answered yet."},
    {"reconnects", kCount, true, "How often its paths were connected again."},
    {"srvname", kText, false, "The server, as the client was told it."},
    {"hostname", kText, true, "At a server the host of the client."},
    {"program", kText, false, kMeaningOfProgram},
    {"version", kText, false, kMeaningOfVersion},
    {"direction", kText, true, kMeaningOfDirection},
    {"paths", CtlKind::paths, true, "Its paths: objects in JSON, else their names."},
    {"trouble", kText, true, kMeaningOfTrouble},
};

constexpr CtlField kPathFields[] = {
    {"sessname", kText, true, "The session that it belongs to."},
    {"pathname", kText, false, "Its name, which commands take."},
    {"hca_name", kText, true, kMeaningOfHca},
    {"hca_port", kText, true, kMeaningOfHca},
    {"src_addr", kText, false, "Where it starts, if that was chosen; at a server the listener."},
    {"dst_addr", kText, true, "Where it leads to; at a server the client."},
    {"hostname", kText, false, "The host that it leads to; at a server that of the client."},
    {"state", kText, true, "connected, connecting, waiting, disconnected (by command) or idle."},
    {"tx_bytes", kBytes, true, kMeaningOfBytes},
    {"rx_bytes", kBytes, true, kMeaningOfBytes},
    {"inflights", kCount, true, "Requests that are not answered yet."},
    {"reconnects", kCount, true, "How often it was connected again."},
    {"requests", kCount, false, "Requests that were sent over it so far."},
    {"preference", kNumber, false, "How much it is wanted; 0 unless the path was given one."},
    {"access", kText, false, "The server's opinion: optimized, non-optimized or inaccessible."},
    {"latency_us", kNumber, false, "Microseconds from the last heartbeat to its answer."},
    {"security", kText, false, "How it is protected, and by whose key or certificate."},
    {"program", kText, false, kMeaningOfProgram},
    {"direction", kText, true, kMeaningOfDirection},
    {"trouble", kText, true, kMeaningOfTrouble},
};

// ---- Rows ---------------------------------------------------------------------------------------

constexpr std::uint64_t kSector = 512;  ///< bytes

constexpr std::pair<std::string_view, std::string_view> kShortPolicies[] = {
    {"round-robin", "rr"}, {"min-inflight", "mi"}, {"min-latency", "ml"}};

CtlJson short_policy(const CtlJson& policy) {
  for (const auto& [name, shorter] : kShortPolicies) {
    if (policy == name) return shorter;
  }
  return nullptr;
}

std::uint64_t sum_of(const CtlJson& list, const char* name) {
  std::uint64_t sum = 0;
  for (const CtlJson& object : list) sum += said_number(object, name);
  return sum;
}

/// "" for a program that does not tell. Null is for things without a program.
CtlJson version_in(const CtlJson& status) {
  const CtlJson version = said(status, "version");
  return version.is_string() ? version : CtlJson("");
}

/// An empty one for what is none.
CtlJson object_in(const CtlJson& value) { return value.is_object() ? value : CtlJson::object(); }

/// The object of a list that has this value; an empty one if none has.
CtlJson with(const CtlJson& list, const char* name, const CtlJson& value) {
  const auto found =
      std::ranges::find_if(list, [&](const CtlJson& each) { return said(each, name) == value; });
  return found != list.end() ? *found : CtlJson::object();
}

/// A row with all fields of its object, in their order.
CtlJson row_of(CtlObject object, const CtlJson& known) {
  CtlJson row;
  for (const CtlField& field : fields_of(object)) {
    row[std::string{field.name}] = said(known, field.name.data());
  }
  if (row["trouble"].is_null()) row["trouble"] = "";
  return row;
}

/// A row of a program, which says whose it is.
CtlJson row_of(CtlObject object, CtlJson known, const CtlReport& report) {
  known["program"] = report.program.name;
  known["version"] = version_in(report.status);
  known["direction"] = is_server(report) ? "export" : "import";
  return row_of(object, known);
}

bool is_connected(const CtlJson& path) { return said(path, "state") == "connected"; }
bool is_idle(const CtlJson& path) { return said(path, "state") == "idle"; }

std::string letters_of(const CtlJson& paths) {
  std::string letters;
  for (const CtlJson& path : paths) letters += is_connected(path) ? 'U' : is_idle(path) ? '-' : '_';
  return letters;
}

/// A program that does not tell takes every path that is connected.
bool takes_requests(const CtlJson& path) {
  const CtlJson in_use = said(path, "in_use");
  return in_use.is_boolean() ? in_use.get<bool>() : is_connected(path);
}

/// A client's address, [tcp:|rdma:][SRC@]DST:PORT[,preference=N], in parts.
struct AddressParts {
  CtlJson source, destination;
};
AddressParts parts_of(const CtlJson& address) {
  if (!address.is_string()) return {};
  std::string text = address.get<std::string>();
  for (const char* transport : {"tcp:", "rdma:"}) {
    if (text.starts_with(transport)) text.erase(0, text.find(':') + 1);
  }
  text.erase(std::min(text.find(','), text.size()));
  const std::size_t at = text.find('@');
  if (at == std::string::npos) return {{}, text};
  return {text.substr(0, at), text.substr(at + 1)};
}

std::string without_port(const std::string& address) {
  return address.substr(0, std::min(address.rfind(':'), address.size()));
}

/// Null where the address is not known.
CtlJson host_in(const CtlJson& address) {
  return address.is_string() ? CtlJson(without_port(address.get<std::string>())) : CtlJson{};
}

/// The mappings whose disks of the kernel a bridge's devices are, by the names of these.
std::map<std::string, std::string> mappings_in(const CtlJson& status) {
  std::map<std::string, std::string> mappings;
  for (const CtlJson& disk : disks_in(status))
    mappings.emplace(plain_path(said_text(disk, "device")), said_text(disk, "disk"));
  return mappings;
}

/// The disk of the kernel that a bridge's device is; null: none.
const KernelDevice* disk_of(const CtlJson& device, const std::string& mapping,
                            const std::vector<KernelDevice>& kernel_devices) {
  const CtlJson uuid = said(device, "uuid");
  const auto found = std::ranges::find_if(kernel_devices, [&](const KernelDevice& each) {
    return each.name == mapping && (uuid.is_null() || uuid == each.uuid);
  });
  return found != kernel_devices.end() ? &*found : nullptr;
}

CtlJson path_of_device(const CtlJson& name) {
  return name.is_string() ? CtlJson("/dev/" + name.get<std::string>()) : CtlJson{};
}

/// The rows of a bridge or a plugin.
class ClientRows {
 public:
  ClientRows(const CtlReport& report, const std::vector<KernelDevice>& kernel_devices)
      : report_{report},
        status_{report.status},
        counted_{said_list(report.counters, "devices")},
        mappings_{mappings_in(report.status)},
        has_counters_{report.counters.is_object()},
        kernel_devices_{kernel_devices} {}

  void add_to(CtlInventory& inventory) const {
    for (const CtlJson& device : said_list(status_, "devices")) {
      inventory.devices.push_back(row_of(CtlObject::device, about(device), report_));
      inventory.devices.back()["program"] = mapping_of(device);
    }
    add_unserved(inventory);
    CtlJson& row = inventory.sessions.emplace_back(row_of(CtlObject::session, session(), report_));
    row["paths"] = CtlJson::array();
    row["serves"] = names_of_disks();
    for (const CtlJson& path : said_list(status_, "paths")) {
      inventory.paths.push_back(row_of(CtlObject::path, about_path(path), report_));
      row["paths"].push_back(inventory.paths.back());
      // This field is never shown: it is for commands that steer the path.
      inventory.paths.back()["elsewhere"] = said(path, "elsewhere") == true;
    }
  }

 private:
  /// A bridge with one disk is called as that is.
  std::string mapping_of(const CtlJson& device) const {
    const auto found = mappings_.find(plain_path(said_text(device, "device")));
    return found != mappings_.end() ? found->second : report_.program.name;
  }

  /// Disks that are mapped, and that neither the bridge has open nor the kernel has.
  void add_unserved(CtlInventory& inventory) const {
    std::set<std::string> known;
    for (const CtlJson& each : inventory.devices) known.insert(said_text(each, "program"));
    for (const KernelDevice& each : kernel_devices_) known.insert(each.name);
    for (const CtlJson& disk : disks_in(status_)) {
      const std::string name = said_text(disk, "disk"), state = said_text(disk, "state");
      if (state == "serving" || state == "leaving" || known.contains(name)) continue;
      const std::string trouble = said_text(disk, "trouble");
      CtlJson row = row_of(CtlObject::device,
                           {{"sessname", said(status_, "session")},
                            {"mapping_path", said(disk, "device")},
                            {"state", state == "refused" ? "refused" : "waiting"},
                            {"users", 0U},
                            {"trouble", trouble.empty() && waits() ? awaited() : trouble}},
                           report_);
      row["program"] = name;
      row["unserved"] = true;  // this field is never shown
      inventory.devices.push_back(std::move(row));
    }
  }

  CtlJson names_of_disks() const {
    CtlJson names = CtlJson::array();
    for (const CtlJson& disk : disks_in(status_)) names.push_back(said_text(disk, "disk"));
    return names;
  }

  CtlJson bytes(const CtlJson& counters, const char* name, std::uint64_t unit) const {
    return has_counters_ ? CtlJson(said_number(counters, name) / unit) : CtlJson{};
  }

  CtlJson about(const CtlJson& device) const {
    const CtlJson counters = with(counted_, "device", said(device, "device"));
    const KernelDevice* const disk = disk_of(device, mapping_of(device), kernel_devices_);
    const CtlJson name = disk != nullptr ? CtlJson(disk->device) : CtlJson{};
    // The bridge would write, but the kernel does not while another client does.
    const bool read_only = disk != nullptr && disk->read_only;
    return {{"sessname", said(status_, "session")},
            {"mapping_path", said(device, "device")},
            {"devname", name},
            {"devpath", path_of_device(name)},
            {"state", state_of(device)},
            {"access_mode", read_only ? CtlJson("ro") : said(device, "access")},
            {"size", said(device, "size")},
            {"rx_sect", bytes(counters, "read_bytes", kSector)},
            {"tx_sect", bytes(counters, "write_bytes", kSector)},
            {"users", said(device, "users")},
            {"uuid", said(device, "uuid")},
            {"trouble", trouble_of(device)}};
  }

  std::string state_of(const CtlJson& device) const {
    if (!said_text(device, "trouble").empty()) return "closed";
    return waits() ? "waiting" : said(device, "shrunk") == true ? "shrunk" : "open";
  }

  CtlJson trouble_of(const CtlJson& device) const {
    const std::string state = state_of(device);
    if (state == "waiting") return awaited();
    if (state != "shrunk") return said(device, "trouble");
    return "its export has shrunk at the server: what is behind the end that it has there is EIO; "
           "enlarge it there again";
  }

  /// True: its session has no path that takes requests.
  bool waits() const {
    return said(status_, "session").is_string() &&
           std::ranges::none_of(said_list(status_, "paths"), takes_requests);
  }

  /// "no path for 12 s (tcp:10.0.0.1:1234: Connection refused)"
  std::string awaited() const {
    const CtlJson since = said(status_, "seconds_without_path");
    std::string why;
    for (const CtlJson& path : said_list(status_, "paths")) {
      std::string trouble = said_text(path, "trouble");
      if (trouble.empty() && said(path, "state") == "disconnected")
        trouble = "disconnected by command";
      if (trouble.empty() && said(path, "access") == "inaccessible") trouble = "inaccessible";
      if (trouble.empty()) continue;
      why += (why.empty() ? "" : "; ") + said_text(path, "address") + ": " + trouble;
    }
    return "no path" + (since.is_number() ? " for " + since.dump() + " s" : "") +
           (why.empty() ? "" : " (" + why + ")");
  }

  bool is_of_annex() const {
    return std::ranges::any_of(ctl_annexes(), [this](const CtlAnnex* annex) {
      return annex->has_disk != nullptr && annex->has_disk(status_);
    });
  }

  /// True: nobody asks for a session, and none has failed. Only disks of an annex have no paths
  /// then.
  bool is_idle_session(const CtlJson& paths) const {
    return said(status_, "session").is_null() && said_text(status_, "trouble").empty() &&
           (is_of_annex() || !paths.empty()) && std::ranges::all_of(paths, is_idle);
  }

  CtlJson session() const {
    const CtlJson& paths = said_list(status_, "paths");
    const auto active = static_cast<std::uint64_t>(std::ranges::count_if(paths, is_connected));
    const CtlJson read = sum_of(counted_, "read_bytes"), written = sum_of(counted_, "write_bytes");
    return {{"sessname", said(status_, "session")},
            {"path_cnt", paths.size()},
            {"act_path_cnt", active},
            {"state", active > 0               ? "connected"
                      : is_idle_session(paths) ? "idle"
                                               : "disconnected"},
            {"path_uu", letters_of(paths)},
            {"mp", said(status_, "policy")},
            {"mp_short", short_policy(said(status_, "policy"))},
            {"rx_bytes", has_counters_ ? read : CtlJson{}},
            {"tx_bytes", has_counters_ ? written : CtlJson{}},
            {"inflights", sum_of(paths, "in_flight")},
            {"reconnects", sum_of(paths, "reconnects")},
            {"srvname", said(status_, "server")},
            {"trouble", waits() ? CtlJson(awaited()) : said(status_, "trouble")}};
  }

  CtlJson about_path(const CtlJson& path) const {
    const AddressParts parts = parts_of(said(path, "address"));
    CtlJson row = object_in(path);  // most of it has its name already
    row["sessname"] = said(status_, "session");
    row["pathname"] = said(path, "address");
    row["src_addr"] = parts.source;
    row["dst_addr"] = parts.destination;
    row["hostname"] = host_in(parts.destination);
    row["inflights"] = said(path, "in_flight");
    return row;
  }

  const CtlReport& report_;
  const CtlJson& status_;
  const CtlJson& counted_;
  const std::map<std::string, std::string> mappings_;
  bool has_counters_;
  const std::vector<KernelDevice>& kernel_devices_;
};

/// The rows of a server.
class ServerRows {
 public:
  explicit ServerRows(const CtlReport& report) : report_{report}, status_{report.status} {}

  void add_to(CtlInventory& inventory) const {
    for (const CtlJson& device : said_list(status_, "devices")) {
      inventory.devices.push_back(row_of(CtlObject::device, about(device), report_));
    }
    for (const CtlJson& each : said_list(status_, "exports")) {
      if (!with(said_list(status_, "devices"), "device", said(each, "export")).empty()) continue;
      inventory.devices.push_back(row_of(CtlObject::device, about_unused(each), report_));
    }
    for (const CtlJson& session : said_list(status_, "sessions")) {
      inventory.sessions.push_back(row_of(CtlObject::session, about_session(session), report_));
    }
    for (const CtlJson& path : said_list(status_, "paths")) {
      inventory.paths.push_back(row_of(CtlObject::path, about_path(path), report_));
    }
  }

 private:
  CtlJson about(const CtlJson& device) const {
    const CtlJson name = said(device, "device");
    const CtlJson its_export = with(said_list(status_, "exports"), "export", name);
    return {{"sessname", said(device, "session")},   {"mapping_path", name},
            {"state", state_of(its_export, "open")}, {"access_mode", said(device, "access_mode")},
            {"size", said(its_export, "size")},      {"users", 1U},
            {"openers", opener_of(device)},          {"hostname", host_of(said(device, "session"))},
            {"uuid", said(its_export, "uuid")},      {"trouble", said(its_export, "trouble")}};
  }

  /// An export that nobody has open. Its access is the one that there might be.
  CtlJson about_unused(const CtlJson& its_export) const {
    return {{"mapping_path", said(its_export, "export")},
            {"state", state_of(its_export, "free")},
            {"access_mode", said(its_export, "read_only") == true ? "ro" : "rw"},
            {"size", said(its_export, "size")},
            {"users", 0U},
            {"openers", ""},
            {"uuid", said(its_export, "uuid")},
            {"trouble", said(its_export, "trouble")}};
  }

  /// "'vm1' (10.0.0.7:40000, 10.0.1.7:40002) rw"
  std::string opener_of(const CtlJson& device) const {
    std::string clients;
    for (const CtlJson& path : paths_of(said(device, "session"))) {
      clients += (clients.empty() ? "" : ", ") + said_text(path, "client");
    }
    return "'" + said_text(device, "session") + "' (" +
           (clients.empty() ? "no path at present" : clients) + ") " +
           said_text(device, "access_mode");
  }

  static std::string state_of(const CtlJson& its_export, const char* usual) {
    const std::string state = said_text(its_export, "state");
    return state.empty() || state == "open" ? usual : state;
  }

  CtlJson about_session(const CtlJson& session) const {
    const CtlJson name = said(session, "session");
    const CtlJson paths = paths_of(name);
    CtlJson rows = CtlJson::array();
    for (const CtlJson& path : paths)
      rows.push_back(row_of(CtlObject::path, about_path(path), report_));
    return {
        {"sessname", name},
        {"path_cnt", paths.size()},
        {"act_path_cnt", static_cast<std::uint64_t>(std::ranges::count_if(paths, is_connected))},
        {"path_uu", letters_of(paths)},
        {"inflights", said(session, "requests")},
        {"hostname", host_of(name)},
        {"paths", std::move(rows)}};
  }

  CtlJson paths_of(const CtlJson& session) const {
    CtlJson paths = CtlJson::array();
    for (const CtlJson& path : said_list(status_, "paths")) {
      if (said(path, "session") == session) paths.push_back(path);
    }
    return paths;
  }

  /// Null while it has no path.
  CtlJson host_of(const CtlJson& session) const {
    const CtlJson paths = paths_of(session);
    return paths.empty() ? CtlJson{} : host_in(said(paths.front(), "client"));
  }

  CtlJson about_path(const CtlJson& path) const {
    CtlJson row = object_in(path);
    row["sessname"] = said(path, "session");
    row["pathname"] = said(path, "client");
    row["src_addr"] = said(path, "listener");
    row["dst_addr"] = said(path, "client");
    row["hostname"] = host_in(said(path, "client"));
    row["inflights"] = said(path, "requests");
    row["requests"] = nullptr;  // those under way are meant there
    return row;
  }

  const CtlReport& report_;
  const CtlJson& status_;
};

/// The reason why a bridge has not opened this device yet.
std::string obstacle_of(const CtlJson& status, const std::string& mapping) {
  const CtlJson* const disk = disk_called(status, mapping);
  if (disk != nullptr && !said_text(*disk, "trouble").empty()) return said_text(*disk, "trouble");
  for (const CtlJson& path : said_list(status, "paths")) {
    const std::string trouble = said_text(path, "trouble");
    if (!trouble.empty()) return trouble;
  }
  return said_text(status, "trouble");
}

/// The bridge is dead, or has no control socket; or it has just started, and recovers the disk.
void add_orphans(CtlInventory& inventory, const std::vector<CtlReport>& reports,
                 const std::vector<KernelDevice>& kernel_devices) {
  std::set<std::string> seen;
  for (const CtlJson& row : inventory.devices) {
    if (row["devname"].is_string()) seen.insert(row["devname"]);
  }
  for (const KernelDevice& device : kernel_devices) {
    if (seen.contains(device.device)) continue;
    const auto bridge = std::ranges::find_if(reports, [&](const CtlReport& report) {
      return !is_server(report) && (report.program.name == device.name ||
                                    disk_called(report.status, device.name) != nullptr);
    });
    const bool runs = bridge != reports.end();
    inventory.devices.push_back(row_of(
        CtlObject::device,
        {{"devname", device.device},
         {"devpath", "/dev/" + device.device},
         {"state", runs ? "recovering" : "unattended"},
         {"access_mode", device.read_only ? CtlJson("ro") : CtlJson{}},
         {"uuid", device.uuid},
         {"program", device.name},
         {"direction", "import"},
         {"trouble", runs ? CtlJson(obstacle_of(bridge->status, device.name)) : CtlJson{}}}));
  }
}

}  // namespace

CtlInventory take_inventory(const std::vector<CtlReport>& reports,
                            const std::vector<KernelDevice>& kernel_devices, CtlSide side) {
  CtlInventory inventory;
  for (const CtlReport& report : reports) {
    if (is_server(report)) {
      if (side != CtlSide::client) ServerRows{report}.add_to(inventory);
    } else if (side != CtlSide::server) {
      ClientRows{report, kernel_devices}.add_to(inventory);
    }
  }
  if (side != CtlSide::server) add_orphans(inventory, reports, kernel_devices);
  return inventory;
}

bool is_of_program(const CtlJson& row, const CtlReport& report) {
  return row["program"] == report.program.name ||
         (row["program"].is_string() && disk_called(report.status, row["program"]) != nullptr);
}

bool is_path_called(const CtlJson& path, const std::string& name) {
  const auto text = [&path](const char* field) {
    return path[field].is_string() ? path[field].get<std::string>() : std::string{};
  };
  const std::string whole = text("pathname"), to = text("dst_addr"), host = without_port(to);
  const std::string from = text("src_addr"), at = from.empty() ? "" : from + "@";
  std::string plain = without_ip(name);
  if (plain == whole) return true;
  for (const std::string_view transport : {"tcp:", "rdma:"}) {
    if (whole.starts_with(transport) && plain.starts_with(transport))
      plain.erase(0, transport.size());
  }
  return plain == to || plain == host || (!at.empty() && (plain == at + to || plain == at + host));
}

std::span<const CtlField> fields_of(CtlObject object) {
  if (object == CtlObject::device) return kDeviceFields;
  if (object == CtlObject::session) return kSessionFields;
  return kPathFields;
}

}  // namespace rnbd
