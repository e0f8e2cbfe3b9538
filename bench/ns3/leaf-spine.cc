// The flows of `weir sim path --trace` once more, in ns-3: the same leaf-spine fabric, the same arrivals and
// sizes, and for each flow the same paths there and back. What is compared is TCP and queues, with hashing
// taken out. A path is an address: a host has one for each spine, and the leaves route by it.
//
// ns-3 has 54 bytes of headers in a packet of data and weir's simulator 116 (a tunnel's), so every rate and
// buffer is scaled by 1502/1564: a packet takes as long. ns-3 shakes hands first, so that a flow's time
// begins when its connection is there.
//
// Use: leaf-spine TRACE LEAVES SPINES HOSTS GBPS DELAY_NS BUFFER_BYTES TIMEOUT_US   (see compare.sh)

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

const uint32_t SEGMENT = 1448;
const uint32_t WINDOW = 1024;
const double SCALE = 1502.0 / 1564.0;
const uint16_t PORT = 5000;

struct Flow
{
    uint64_t arrivedNs, bytes, endedNs; // endedNs: in weir's simulator, 0 if it did not
    uint32_t from, to, path, back;
    uint64_t unsent, received;
    int64_t begunNs, doneNs;
    Ptr<Socket> socket;
};

std::vector<Flow> flows;
std::map<std::pair<uint32_t, uint16_t>, size_t> byPeer;
std::vector<Ptr<Node>> hosts;
uint32_t hostsOfLeaf;
size_t left;

Ipv4Address
AddressOf(uint32_t host, uint32_t path, uint32_t back)
{
    uint32_t leaf = host / hostsOfLeaf, place = host % hostsOfLeaf;
    return Ipv4Address(10u << 24 | (leaf + 1) << 16 | path << 12 | back << 8 | (place + 1));
}

void
Fill(size_t number, Ptr<Socket> socket)
{
    Flow& flow = flows[number];
    while (flow.unsent > 0)
    {
        uint32_t room = socket->GetTxAvailable();
        uint64_t size = std::min<uint64_t>({flow.unsent, room, 64 * SEGMENT});
        if (size == 0 || socket->Send(Create<Packet>(size)) <= 0)
        {
            return;
        }
        flow.unsent -= size;
    }
    socket->Close();
}

void
Begin(size_t number)
{
    Flow& flow = flows[number];
    flow.socket = Socket::CreateSocket(hosts[flow.from], TcpSocketFactory::GetTypeId());
    uint16_t port = 10000 + number % 50000;
    flow.socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
    byPeer[{AddressOf(flow.from, flow.back, flow.back).Get(), port}] = number;
    flow.socket->SetConnectCallback(
        Callback<void, Ptr<Socket>>([number](Ptr<Socket> socket) {
            flows[number].begunNs = Simulator::Now().GetNanoSeconds();
            Fill(number, socket);
        }),
        Callback<void, Ptr<Socket>>([](Ptr<Socket>) {}));
    flow.socket->SetSendCallback(
        Callback<void, Ptr<Socket>, uint32_t>([number](Ptr<Socket> socket, uint32_t) {
            if (flows[number].begunNs >= 0 && flows[number].unsent > 0)
            {
                Fill(number, socket);
            }
        }));
    flow.socket->Connect(InetSocketAddress(AddressOf(flow.to, flow.path, flow.back), PORT));
}

void
Receive(Ptr<Socket> socket)
{
    Address from;
    while (Ptr<Packet> packet = socket->RecvFrom(from))
    {
        if (packet->GetSize() == 0)
        {
            socket->Close();
            return;
        }
        auto peer = InetSocketAddress::ConvertFrom(from);
        Flow& flow = flows[byPeer.at({peer.GetIpv4().Get(), peer.GetPort()})];
        flow.received += packet->GetSize();
        if (flow.received >= flow.bytes && flow.doneNs < 0)
        {
            flow.doneNs = Simulator::Now().GetNanoSeconds();
            if (--left == 0)
            {
                Simulator::Stop();
            }
        }
    }
}

void
Listen(Ptr<Node> host)
{
    Ptr<Socket> socket = Socket::CreateSocket(host, TcpSocketFactory::GetTypeId());
    socket->Bind(InetSocketAddress(Ipv4Address::GetAny(), PORT));
    socket->Listen();
    socket->SetAcceptCallback(
        Callback<bool, Ptr<Socket>, const Address&>([](Ptr<Socket>, const Address&) { return true; }),
        Callback<void, Ptr<Socket>, const Address&>([](Ptr<Socket> accepted, const Address&) {
            accepted->SetRecvCallback(Callback<void, Ptr<Socket>>(&Receive));
        }));
}

void
Read(const char* file)
{
    std::ifstream trace(file);
    std::string line;
    std::getline(trace, line);
    if (line != "load,scheme,seed,flow,arrived_ns,from,to,bytes,path,path_back,ended_ns")
    {
        std::fprintf(stderr, "%s is no trace of `weir sim path --trace`\n", file);
        std::exit(2);
    }
    while (std::getline(trace, line))
    {
        std::vector<std::string> fields;
        std::stringstream parts(line);
        for (std::string part; std::getline(parts, part, ',');)
        {
            fields.push_back(part);
        }
        fields.resize(11);
        auto number = [&](size_t at) { return fields[at].empty() ? 0 : std::stoull(fields[at]); };
        Flow flow{};
        flow.arrivedNs = number(4);
        flow.from = number(5);
        flow.to = number(6);
        flow.bytes = flow.unsent = number(7);
        flow.path = number(8);
        flow.back = number(9);
        flow.endedNs = number(10);
        flow.begunNs = flow.doneNs = -1;
        flows.push_back(flow);
    }
    left = flows.size();
}

// Connects two nodes; returns the interfaces, by which routes are made. The router's interfaces have addresses
// that nothing uses; those of hosts come later.
std::pair<uint32_t, uint32_t>
Cable(Ptr<Node> one, Ptr<Node> other, PointToPointHelper& link, std::string queueOfOne, bool isHost)
{
    NetDeviceContainer devices = link.Install(one, other);
    DynamicCast<PointToPointNetDevice>(devices.Get(0))->GetQueue()->SetMaxSize(QueueSize(queueOfOne));
    static uint32_t cables = 0;
    auto attach = [&](Ptr<Node> node, Ptr<NetDevice> device, uint32_t end) {
        Ptr<Ipv4> ip = node->GetObject<Ipv4>();
        uint32_t interface = ip->AddInterface(device);
        Ipv4Address address(172u << 24 | 16u << 16 | (4 * cables + end));
        if (!isHost || end == 2)
        {
            ip->AddAddress(interface, Ipv4InterfaceAddress(address, Ipv4Mask("255.255.255.252")));
        }
        ip->SetUp(interface);
        return interface;
    };
    uint32_t here = attach(one, devices.Get(0), 1), there = attach(other, devices.Get(1), 2);
    cables++;
    return {here, there};
}

void
Build(uint32_t leaves, uint32_t spines, double gbps, uint64_t delayNs, uint64_t buffer)
{
    NodeContainer all;
    all.Create(leaves * hostsOfLeaf + leaves + spines);
    Ipv4StaticRoutingHelper routing;
    InternetStackHelper stack;
    stack.SetRoutingHelper(routing);
    stack.Install(all);
    auto routes = [&](Ptr<Node> node) { return routing.GetStaticRouting(node->GetObject<Ipv4>()); };
    auto leaf = [&](uint32_t at) { return all.Get(leaves * hostsOfLeaf + at); };
    auto spine = [&](uint32_t at) { return all.Get(leaves * hostsOfLeaf + leaves + at); };

    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(uint64_t(gbps * 1e9 * SCALE))));
    link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(delayNs)));
    std::string queue = std::to_string(uint64_t(buffer * SCALE)) + "B";
    link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", QueueSizeValue(QueueSize(queue)));
    for (uint32_t host = 0; host < leaves * hostsOfLeaf; host++)
    {
        uint32_t at = host / hostsOfLeaf;
        hosts.push_back(all.Get(host));
        // A host does not drop what it sends.
        auto [up, down] = Cable(all.Get(host), leaf(at), link, "1000000p", true);
        Ptr<Ipv4> ip = all.Get(host)->GetObject<Ipv4>();
        routes(all.Get(host))->SetDefaultRoute(Ipv4Address::GetAny(), up);
        auto add = [&](uint32_t path, uint32_t back) {
            Ipv4Address address = AddressOf(host, path, back);
            ip->AddAddress(up, Ipv4InterfaceAddress(address, Ipv4Mask("0.0.15.0")));
            routes(leaf(at))->AddHostRouteTo(address, down);
        };
        for (uint32_t pair = 0; pair < spines * spines; pair++)
        {
            // The first address that matches becomes the source: one whose two paths are the same.
            uint32_t path = pair % spines, back = (pair + pair / spines) % spines;
            add(path, back);
        }
        Listen(all.Get(host));
    }
    for (uint32_t at = 0; at < leaves; at++)
    {
        for (uint32_t path = 0; path < spines; path++)
        {
            auto [up, down] = Cable(leaf(at), spine(path), link, queue, false);
            Ipv4Address net(10u << 24 | (at + 1) << 16);
            routes(spine(path))->AddNetworkRouteTo(net, Ipv4Mask("255.255.0.0"), down);
            for (uint32_t other = 0; other < leaves; other++)
            {
                Ipv4Address beyond(10u << 24 | (other + 1) << 16 | path << 12);
                if (other != at)
                {
                    routes(leaf(at))->AddNetworkRouteTo(beyond, Ipv4Mask("255.255.240.0"), up);
                }
            }
        }
    }
}

void
Say(const char* name, uint64_t least, uint64_t most)
{
    std::vector<double> ours, theirs;
    for (const Flow& flow : flows)
    {
        if (flow.bytes >= least && flow.bytes < most && flow.endedNs > 0 && flow.doneNs >= 0)
        {
            ours.push_back((flow.endedNs - flow.arrivedNs) / 1e3);
            theirs.push_back((flow.doneNs - flow.begunNs) / 1e3);
        }
    }
    if (ours.empty())
    {
        return;
    }
    auto figures = [](std::vector<double>& times) {
        std::sort(times.begin(), times.end());
        double sum = 0;
        for (double time : times)
        {
            sum += time;
        }
        auto at = [&](double part) { return times[size_t((times.size() - 1) * part + 0.5)]; };
        return std::vector<double>{sum / times.size(), at(0.5), at(0.99)};
    };
    std::vector<double> one = figures(ours), other = figures(theirs);
    std::printf("%-8s %6zu", name, ours.size());
    for (size_t at = 0; at < 3; at++)
    {
        std::printf("  %10.1f %10.1f %5.2f", one[at], other[at], one[at] / other[at]);
    }
    std::printf("\n");
}

} // namespace

int
main(int count, char** words)
{
    if (count != 9)
    {
        std::fprintf(stderr, "use: %s TRACE LEAVES SPINES HOSTS GBPS DELAY_NS BUFFER_BYTES TIMEOUT_US\n", words[0]);
        return 2;
    }
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpLinuxReno::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(SEGMENT));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(WINDOW * SEGMENT));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(WINDOW * SEGMENT));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MicroSeconds(std::stoul(words[8]))));
    Config::SetDefault("ns3::TcpSocketBase::ClockGranularity", TimeValue(MicroSeconds(1)));
    Read(words[1]);
    hostsOfLeaf = std::stoul(words[4]);
    Build(std::stoul(words[2]), std::stoul(words[3]), std::stod(words[5]), std::stoull(words[6]), std::stoull(words[7]));
    for (size_t number = 0; number < flows.size(); number++)
    {
        Simulator::Schedule(NanoSeconds(flows[number].arrivedNs), [number] { Begin(number); });
    }
    Simulator::Stop(NanoSeconds(flows.back().arrivedNs) + Seconds(10));
    Simulator::Run();
    std::printf("%-8s %6s  %10s %10s %5s  %10s %10s %5s  %10s %10s %5s\n", "us", "flows", "mean weir", "ns-3",
                "ratio", "p50 weir", "ns-3", "ratio", "p99 weir", "ns-3", "ratio");
    Say("all", 0, UINT64_MAX);
    Say("small", 0, 100000);
    Say("middle", 100000, 10000000);
    Say("large", 10000000, UINT64_MAX);
    Simulator::Destroy();
    return 0;
}
