// SPDX-License-Identifier: BSD-3-Clause
// The fields of devices, sessions and paths. Lists, the help and the man page have them from here.
#include "bridge/ctl/inventory.hpp"

namespace rnbd {
namespace {

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
     "open, free, waiting, closed, shrunk, displaced, recovering or unattended."},
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

}  // namespace

std::span<const CtlField> fields_of(CtlObject object) {
  if (object == CtlObject::device) return kDeviceFields;
  if (object == CtlObject::session) return kSessionFields;
  return kPathFields;
}

}  // namespace rnbd
