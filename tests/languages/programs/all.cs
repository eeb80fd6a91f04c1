using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Net.Sockets;
using System.Threading;

class Program {
    static void Hog() {
        var held = new List<byte[]>();
        while (true) {
            var block = new byte[1 << 20];
            for (int i = 0; i < block.Length; i++) block[i] = 1;
            held.Add(block);
        }
    }

    static int Main(string[] args) {
        switch (args[0]) {
            case "echo": Console.Write(Console.In.ReadToEnd()); break;
            case "words": for (int i = 1; i < args.Length; i++) Console.WriteLine(args[i]); break;
            case "text": Console.WriteLine("grüße 你好 🙂"); break;
            case "leave": return 3;
            case "wait": while (true) Thread.Sleep(1000);
            case "spin": while (true) { }
            case "hog": Hog(); break;
            case "bomb": while (true) Process.Start("sleep", "60");
            case "flood": for (int i = 0; i < 100000; i++) Console.WriteLine("a line of output"); break;
            case "file":
                File.WriteAllText("note.txt", "kept\n");
                Console.Write(File.ReadAllText("note.txt"));
                break;
            case "connect":
                new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp)
                    .Connect("127.0.0.1", int.Parse(args[1]));
                Console.WriteLine("connected");
                break;
        }
        return 0;
    }
}
